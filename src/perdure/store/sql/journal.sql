-- name: journal
SELECT job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint, checkpoint_no,
       wake_at, started_at, ended_at
FROM journal
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
ORDER BY job_id, seq

-- name: copy_journal
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at)
-- Without attempts: what another job has done is not undone by this one.
SELECT :id, seq, id, kind, name, state, 0, input, output, error, checkpoint,
       checkpoint_no, wake_at, started_at, ended_at
FROM journal WHERE job_id = :source AND seq < :before

-- name: retry_entries
UPDATE journal SET state = 'PENDING', attempt = 0, error = NULL, wake_at = NULL, ended_at = NULL,
                   -- What a step has given so far belongs to its checkpoint.
                   output = CASE WHEN kind = 'step' AND state <> 'SKIPPED' THEN output END
WHERE job_id = :id AND seq >= :seq
  AND (state IN ('PENDING', 'RUNNING', 'FAILED') OR (state = 'SKIPPED' AND seq = :skipped))

-- name: entry_state
SELECT state FROM journal WHERE job_id = :id AND seq = :seq

-- name: skip_entry
UPDATE journal SET state = 'SKIPPED', output = :output, error = NULL, wake_at = NULL, ended_at = :now
WHERE job_id = :id AND seq = :seq

-- name: delete_journal
DELETE FROM journal
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
