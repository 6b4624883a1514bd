-- name: upsert_entries
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at, key)
WITH entry (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
            checkpoint_no, wake_at, started_at, ended_at, owner, epoch, key) AS (VALUES {entries})
SELECT entry.job_id, seq, id, entry.kind, name, state, attempt, input, output, error, checkpoint,
       checkpoint_no, wake_at, started_at, ended_at, key
FROM entry CROSS JOIN lease
  ON lease.job_id = entry.job_id AND lease.owner = entry.owner AND lease.epoch = entry.epoch
WHERE true
ON CONFLICT (job_id, seq) DO UPDATE SET
  id = excluded.id,  -- another id is refused: see journal_place
  state = excluded.state, attempt = excluded.attempt, input = coalesce(excluded.input, input),
  output =
  -- use: kept_output
  , error = excluded.error, checkpoint = excluded.checkpoint,
  checkpoint_no = excluded.checkpoint_no,
  checkpoint_size = max(checkpoint_size, coalesce(length(checkpoint), 0)),
  wake_at = excluded.wake_at,
  started_at = coalesce(excluded.started_at, started_at), ended_at = excluded.ended_at,
  key = excluded.key
-- A failure stands until a person takes it back: a late start does not change it.
WHERE state <> 'FAILED' OR (excluded.state <> 'RUNNING' AND excluded.state <> 'PENDING')
   OR id <> excluded.id

-- name: upsert_effect
INSERT INTO effect (job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state,
                    in_doubt, key_ttl, details, result, problem, error, undo, proof, called_at,
                    ended_at, business, kept_until, last_called_at)
SELECT :id, (SELECT coalesce(max(no), 0) + 1 FROM effect WHERE job_id = :id), :tenant, :key, :step,
       :part, :ordinal, :generation, :kind, :target, :state, :in_doubt, :key_ttl, :details,
       :result, :problem, :error, :undo, :proof, :called_at, :ended_at, :business, :kept_until,
       :last_called_at
FROM lease
WHERE job_id = :id AND owner = :owner AND epoch = :epoch
ON CONFLICT (tenant, key) DO UPDATE SET
  job_id = excluded.job_id, step = excluded.step, part = excluded.part,
  ordinal = excluded.ordinal, state = excluded.state, result =
  -- use: kept_result
  , problem = excluded.problem, error = excluded.error, proof = excluded.proof,
  ended_at = excluded.ended_at, last_called_at = excluded.last_called_at

-- name: change_effect
UPDATE effect SET state = :state, result = :result, problem = :problem, error = :error,
                  proof = :proof, ended_at = :ended_at, last_called_at = :last_called_at
WHERE tenant = :tenant AND key = :key AND job_id = :id
  AND (state <> 'DONE' OR :state <> 'DONE')  -- once more: `upsert_effect` knows what is kept
  AND EXISTS (SELECT 1 FROM lease WHERE job_id = :id AND owner = :owner AND epoch = :epoch)

-- name: boot
SELECT value FROM fact WHERE name = 'boot'

-- name: set_boot
INSERT INTO fact (name, value) VALUES ('boot', :boot)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: free_all
-- The clock of the leases began anew: nobody knows how long their owners had them, at most so long.
UPDATE lease SET owner = NULL, ready = 1, due_at = :now, worked = worked + max(0, until - since)
WHERE owner IS NOT NULL

-- name: forget_workers
DELETE FROM worker

-- name: fill_pad
INSERT INTO pad (filler) VALUES (zeroblob(:size))

-- name: empty_pad
DELETE FROM pad

-- name: journal_mode
PRAGMA journal_mode

-- name: synchronous
PRAGMA synchronous
