-- What metrics show of a store; each is read from a narrow table or an index.

-- name: gauge_states
-- Only jobs that have not ended: those that have are counted when they end.
SELECT state, count(*) FROM job
WHERE state IN ('PENDING', 'RUNNING', 'WAITING', 'PAUSED', 'COMPENSATING', 'NEEDS_ATTENTION')
GROUP BY state

-- name: gauge_queues
-- A job whose timer has just run out is ready, too: the next claim finds it.
SELECT queue, sum(number), min(since) FROM (
  SELECT queue, count(*) AS number, min(due_at) AS since FROM lease
  WHERE ready = 1 AND queue >= '' GROUP BY queue
  UNION ALL
  SELECT queue, count(*), min(due_at) FROM lease
  WHERE ready = 0 AND due_at IS NOT NULL AND queue >= '' AND due_at <= :now GROUP BY queue) AS waiting
GROUP BY queue

-- name: gauge_approvals
SELECT count(*), min(created_at) FROM approval WHERE state = 'PENDING'

-- name: gauge_effects
SELECT count(*), min(called_at) FROM effect
WHERE state IN ('INTENT', 'IN_DOUBT') AND state = 'IN_DOUBT'

-- name: gauge_schedules
SELECT min(next_at) FROM schedule WHERE paused = 0

-- name: gauge_notices
SELECT count(*), min(due_at) FROM notice WHERE state IN ('WAITING', 'SENDING')

-- name: schema_number
SELECT max(number) FROM perdure_migration
