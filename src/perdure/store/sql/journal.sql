-- part: kept_output
-- A result never changes: the triggers compare it, when it arrives once more and when it is undone. The
-- same result under another key looks like another one. Nobody can see here whether the two are equal,
-- so what is stored stands.
CASE WHEN (journal.state = 'SUCCEEDED' OR substr(journal.state, 1, 9) = 'COMPENSAT')
       AND (excluded.state = 'SUCCEEDED' OR substr(excluded.state, 1, 9) = 'COMPENSAT')
       AND substr(journal.output, 1, 10) <> substr(excluded.output, 1, 10)
       AND char(9) || '"' IN (substr(journal.output, 1, 2), substr(excluded.output, 1, 2))  -- sqlite
       AND chr(9) || '"' IN (substr(journal.output, 1, 2), substr(excluded.output, 1, 2))  -- postgres
       -- What tells nothing is never encrypted: it is equal or not, whatever the keys are.
       AND journal.output NOT IN ('', '{}', '[]', '""', 'null')
       AND excluded.output NOT IN ('', '{}', '[]', '""', 'null')
     THEN journal.output
     ELSE excluded.output END

-- name: journal
SELECT job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint, checkpoint_no,
       wake_at, started_at, ended_at, key
FROM journal
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
ORDER BY job_id, seq

-- name: copy_journal
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at)
-- Without attempts and keys: this job neither undoes nor shares what another job has done.
-- Without approvals: people gave them to another job, and are asked again.
-- Without what is running, or was undone: this job does it itself.
SELECT :id, seq, id, kind, name, CASE WHEN anew THEN 'PENDING' ELSE state END, 0,
       CASE WHEN asks THEN NULL ELSE input END, CASE WHEN anew THEN NULL ELSE output END,
       CASE WHEN anew THEN NULL ELSE error END, CASE WHEN anew THEN NULL ELSE checkpoint END,
       CASE WHEN anew THEN 0 ELSE checkpoint_no END,
       CASE WHEN anew AND kind = 'step' THEN NULL ELSE wake_at END,
       -- Before this job was made, also if the clock was set back since: so they are told apart.
       CASE WHEN started_at < made THEN started_at ELSE made - 0.001 END,
       CASE WHEN anew THEN NULL ELSE ended_at END
FROM (SELECT *, asks OR state NOT IN ('SUCCEEDED', 'SKIPPED', 'FAILED') AS anew,
             (SELECT created_at FROM job WHERE job.id = :id) AS made
      FROM (SELECT *, kind = 'approve' AND state <> 'FAILED' AS asks FROM journal
            WHERE job_id = :source AND seq < :before AND kind <> 'undo') AS entry) AS entry

-- name: undone_entry
SELECT id FROM journal
WHERE job_id = :source AND seq < :before
  AND state IN ('COMPENSATING', 'COMPENSATED', 'COMPENSATION_FAILED')
ORDER BY seq
LIMIT 1

-- name: answered_step
-- A finished step that has asked people.
SELECT journal.id FROM journal JOIN approval
  ON approval.job_id = journal.job_id AND approval.state = 'APPROVED'
  AND substr(approval.step, 1, length(journal.id) + 1) = journal.id || '?'
WHERE journal.job_id = :source AND seq < :before AND kind = 'step'
  AND journal.state NOT IN ('PENDING', 'RUNNING')
LIMIT 1

-- name: entry_by_key
SELECT job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint, checkpoint_no,
       wake_at, started_at, ended_at, key
FROM journal
WHERE key = :key AND state = 'SUCCEEDED'
LIMIT 1

-- name: retry_entries
UPDATE journal SET state = 'PENDING', attempt = 0, error = NULL, ended_at = NULL,
                   -- The end of a sleep stays; everything else gets a new time.
                   wake_at = CASE kind WHEN 'sleep' THEN wake_at END,
                   -- The output of a step so far belongs to its checkpoint.
                   output = CASE WHEN kind = 'step' AND state <> 'SKIPPED' THEN output END
WHERE job_id = :id AND seq >= :seq
  AND (state IN ('PENDING', 'RUNNING', 'FAILED') OR (state = 'SKIPPED' AND seq = :skipped))

-- name: entry_state
SELECT state, id, kind FROM journal WHERE job_id = :id AND seq = :seq

-- name: entry_id
SELECT id FROM journal WHERE job_id = :id AND seq = :seq

-- name: entry_seq
SELECT seq FROM journal WHERE job_id = :id AND id = :entry

-- name: skip_entry
UPDATE journal SET state = 'SKIPPED', output = :output, error = NULL, wake_at = NULL, ended_at = :now
WHERE job_id = :id AND seq = :seq

-- name: entry_checkpoint
SELECT checkpoint, state FROM journal WHERE job_id = :id AND seq = :seq

-- name: skip_item
UPDATE journal SET checkpoint = :checkpoint, checkpoint_no = checkpoint_no + 1
WHERE job_id = :id AND seq = :seq

-- name: forget_journal
DELETE FROM journal WHERE job_id = :id AND seq < :seq

-- name: delete_journal
DELETE FROM journal
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
