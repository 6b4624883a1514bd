-- name: upsert_entry
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15
FROM lease WHERE job_id = ?1 AND owner = ?16 AND epoch = ?17
ON CONFLICT (job_id, seq) DO UPDATE SET
  state = excluded.state, attempt = excluded.attempt, input = coalesce(excluded.input, input),
  output = excluded.output, error = excluded.error, checkpoint = excluded.checkpoint,
  checkpoint_no = excluded.checkpoint_no, wake_at = excluded.wake_at,
  started_at = coalesce(excluded.started_at, started_at), ended_at = excluded.ended_at

-- name: append_event
INSERT INTO event (job_id, type, data, actor, at) VALUES (?, ?, ?, ?, ?)

-- name: boot
SELECT value FROM fact WHERE name = 'boot'

-- name: set_boot
INSERT INTO fact (name, value) VALUES ('boot', :boot)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: free_all
UPDATE lease SET owner = NULL, ready = 1, due_at = :now WHERE owner IS NOT NULL

-- name: forget_workers
DELETE FROM worker

-- name: fill_pad
INSERT INTO pad (filler) VALUES (zeroblob(:size))

-- name: empty_pad
DELETE FROM pad
