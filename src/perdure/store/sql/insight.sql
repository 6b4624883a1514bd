-- What pages show of many jobs: each reads a bounded part of an index, newest first.
-- A plus sign keeps SQLite from another index, in which far more rows fit.

-- name: failed_jobs
SELECT id, tenant, name, coalesce(ended_at, started_at, created_at), error FROM job
WHERE state = :state AND created_at >= :since AND error IS NOT NULL
  AND tenant = :tenant  -- if tenant
ORDER BY created_at DESC
LIMIT :limit

-- name: error_marks
SELECT fingerprint, state, marked_by, marked_at FROM error_mark
WHERE tenant = :tenant

-- name: mark_error
INSERT INTO error_mark (tenant, fingerprint, state, marked_by, marked_at)
VALUES (:tenant, :fingerprint, :state, :by, :now)
ON CONFLICT (tenant, fingerprint) DO UPDATE SET
  state = excluded.state, marked_by = excluded.marked_by, marked_at = excluded.marked_at

-- name: submitted_per_minute
SELECT cast(created_at / 60 AS INTEGER), count(*) FROM job  -- sqlite
SELECT floor(created_at / 60)::bigint, count(*) FROM job  -- postgres
WHERE created_at >= :since
  AND tenant = :tenant  -- if tenant
GROUP BY 1

-- name: ended_per_minute
SELECT state, cast(ended_at / 60 AS INTEGER), count(*) FROM job  -- sqlite
SELECT state, floor(ended_at / 60)::bigint, count(*) FROM job  -- postgres
WHERE ended_at >= :since
  AND +tenant = :tenant  -- sqlite if tenant
  AND tenant = :tenant  -- postgres if tenant
GROUP BY 1, 2

-- name: worked_times
SELECT worked FROM job
WHERE ended_at >= :since AND ended_at < :until
  AND +state = 'COMPLETED'  -- sqlite
  AND state = 'COMPLETED'  -- postgres
  AND +tenant = :tenant  -- sqlite if tenant
  AND tenant = :tenant  -- postgres if tenant
ORDER BY ended_at DESC
LIMIT :limit

-- name: newest_jobs
SELECT id, reused FROM job
WHERE created_at <= :now
  AND tenant = :tenant  -- if tenant
ORDER BY created_at DESC
LIMIT :limit

-- name: step_stats
SELECT name, count(*), sum(CASE state WHEN 'FAILED' THEN 1 ELSE 0 END), sum(attempt),
       max(max(checkpoint_size, coalesce(length(checkpoint), 0)))  -- sqlite
       max(greatest(checkpoint_size, length(checkpoint)))  -- postgres
FROM json_each(:ids) AS wanted CROSS JOIN journal  -- sqlite
  ON journal.job_id = wanted.value AND journal.seq < :most  -- sqlite
FROM unnest(:ids::text[]) AS wanted (job_id) CROSS JOIN LATERAL (  -- postgres
  SELECT * FROM journal WHERE job_id = wanted.job_id AND seq < :most ORDER BY seq) AS journal  -- postgres
WHERE kind = 'step' AND attempt > 0
GROUP BY name

-- name: stuck_jobs
SELECT job_id FROM lease
WHERE
  -- use: is_stuck
  AND tenant = :tenant  -- if tenant

-- name: failed_undos
SELECT coalesce(sum(failed_undos), 0) FROM job
WHERE failed_undos > 0 AND tenant >= ''
  AND tenant = :tenant  -- if tenant

-- name: pending_approvals
SELECT count(*), min(created_at) FROM approval
WHERE state = 'PENDING'
  AND tenant = :tenant  -- if tenant

-- name: doubtful_effects
SELECT count(*), min(called_at) FROM effect
WHERE state IN ('INTENT', 'IN_DOUBT') AND state = 'IN_DOUBT'
  AND tenant = :tenant  -- if tenant

-- name: ready_backlogs
SELECT queue, count(*), min(due_at) FROM lease
WHERE ready = 1 AND queue >= ''
  AND tenant = :tenant  -- if tenant
GROUP BY queue
