-- part: kept_result
-- As with `kept_output`: what is known of an effect never changes.
CASE WHEN effect.state = 'DONE' AND excluded.state = 'DONE'
       AND substr(effect.result, 1, 10) <> substr(excluded.result, 1, 10)
       AND char(9) || '"' IN (substr(effect.result, 1, 2), substr(excluded.result, 1, 2))  -- sqlite
       AND chr(9) || '"' IN (substr(effect.result, 1, 2), substr(excluded.result, 1, 2))  -- postgres
       AND effect.result NOT IN ('', '{}', '[]', '""', 'null')
       AND excluded.result NOT IN ('', '{}', '[]', '""', 'null')
     THEN effect.result
     ELSE excluded.result END

-- name: settle_effect
UPDATE effect SET state = :state, result = :result, proof = :proof, ended_at = :ended_at
WHERE tenant = :tenant AND key = :key

-- name: effects
SELECT job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state, in_doubt,
       key_ttl, details, result, problem, error, undo, proof, called_at, ended_at,
       business, kept_until, last_called_at
FROM effect
WHERE job_id = :id
ORDER BY no

-- name: effect_by_key
SELECT job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state, in_doubt,
       key_ttl, details, result, problem, error, undo, proof, called_at, ended_at,
       business, kept_until, last_called_at
FROM effect
WHERE tenant = :tenant AND key = :key

-- name: effect_of_business
SELECT job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state, in_doubt,
       key_ttl, details, result, problem, error, undo, proof, called_at, ended_at,
       business, kept_until, last_called_at
FROM effect
WHERE tenant = :tenant AND business = :business
ORDER BY generation DESC
LIMIT 1

-- name: open_effects
SELECT job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state, in_doubt,
       key_ttl, details, result, problem, error, undo, proof, called_at, ended_at,
       business, kept_until, last_called_at
FROM effect
WHERE state IN ('INTENT', 'IN_DOUBT')
  AND state = 'IN_DOUBT'  -- if doubt
  AND tenant = :tenant  -- if tenant
  AND (called_at, job_id, no) > (:at, :job, :no)  -- if job
ORDER BY called_at, job_id, no
LIMIT :limit

-- name: has_undo
-- An undo that found nothing to undo does not count.
SELECT 1 FROM journal
WHERE job_id = :id AND kind = 'undo' AND NOT (id = 'undo' AND state = 'SKIPPED')
LIMIT 1

-- name: is_being_undone
-- The job has not ended, and has begun to undo what it did, or is told to.
SELECT 1 FROM job
WHERE id = :id AND ended_at IS NULL
  AND (state = 'COMPENSATING' OR paused_from = 'COMPENSATING'
       OR (SELECT 1 FROM journal
           WHERE job_id = job.id AND kind = 'undo'
             AND NOT (journal.id = 'undo' AND journal.state = 'SKIPPED') LIMIT 1) IS NOT NULL)

-- name: failed_undo
SELECT 1 FROM journal WHERE job_id = :id AND kind = 'undo' AND state = 'FAILED' LIMIT 1

-- name: retry_undo
UPDATE journal SET state = 'PENDING', attempt = 0, error = NULL, output = NULL, wake_at = NULL,
                   ended_at = NULL
WHERE job_id = :id AND kind = 'undo' AND state = 'FAILED'

-- name: delete_effects
DELETE FROM effect
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
  AND business IS NULL

-- name: keep_keys
-- Of a deleted job, only what others need in order not to do it again is kept.
UPDATE effect SET target = '(deleted)', details = NULL, error = NULL, undo = NULL
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: delete_keys
DELETE FROM effect
WHERE kept_until < :now AND (SELECT 1 FROM job WHERE job.id = effect.job_id) IS NULL
