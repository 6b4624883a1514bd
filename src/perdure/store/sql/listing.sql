-- name: latest_entries
-- The last entries of journals, without payloads: found by the key, however long a journal is.
SELECT journal.job_id, seq, journal.id, kind, state, attempt, wake_at
FROM json_each(:ids) AS wanted CROSS JOIN journal  -- sqlite
WHERE journal.job_id = wanted.value  -- sqlite
  AND seq > (SELECT max(seq) FROM journal WHERE job_id = wanted.value) - :number  -- sqlite
FROM unnest(:ids::text[]) AS wanted (job_id), LATERAL (  -- postgres
  SELECT * FROM journal WHERE job_id = wanted.job_id ORDER BY seq DESC LIMIT :number) AS journal  -- postgres
ORDER BY journal.job_id, seq

-- name: budgets
SELECT root_id, data FROM budget
WHERE root_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE root_id = ANY(:ids)  -- postgres

-- name: effects_in_doubt
SELECT job_id, count(*) FROM effect
WHERE state = 'IN_DOUBT'
  AND job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  AND job_id = ANY(:ids)  -- postgres
GROUP BY job_id

-- name: stale_leases
-- Jobs whose lease has run out, or whose worker is silent.
SELECT lease.job_id
FROM json_each(:ids) AS wanted CROSS JOIN lease ON lease.job_id = wanted.value  -- sqlite
FROM unnest(:ids::text[]) AS wanted (job_id) CROSS JOIN LATERAL (  -- postgres
  SELECT * FROM lease WHERE job_id = wanted.job_id LIMIT 1) AS lease  -- postgres
LEFT JOIN worker ON worker.owner = lease.owner
WHERE lease.owner IS NOT NULL AND (until < :clock OR heartbeat_at < :heard_since)
