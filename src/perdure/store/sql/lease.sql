-- name: insert_lease
INSERT INTO lease (job_id, tenant, queue, priority, tag, ready, due_at, wakes, owner, epoch, until,
                   claims, news)
VALUES (:id, :tenant, :queue, :priority, :tag, :ready, :due_at, 0, NULL, :epoch, 0, 0, 0)

-- name: lock_lease
SELECT owner, epoch FROM lease WHERE job_id = :id
FOR UPDATE  -- postgres

-- name: wake_timers
UPDATE lease SET ready = 1
WHERE ready = 0 AND due_at <= :now AND queue = :queue  -- sqlite
WHERE job_id = ANY(ARRAY(  -- postgres
  SELECT job_id FROM lease WHERE ready = 0 AND due_at <= :now AND queue = :queue  -- postgres
  ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED))  -- postgres

-- name: ready
SELECT job_id, tenant, priority, tag FROM lease
WHERE ready = 1 AND queue = :queue
ORDER BY priority DESC, tag
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres

-- name: ready_but
SELECT job_id, tenant, priority, tag FROM lease
WHERE ready = 1 AND queue = :queue
  AND tenant NOT IN (SELECT value FROM json_each(:full))  -- sqlite
  AND tenant <> ALL(:full)  -- postgres
ORDER BY priority DESC, tag
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres

-- name: claim
UPDATE lease SET owner = :owner, epoch = epoch + 1, until = :until, claims = claims + 1,
                 ready = 0, due_at = NULL
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
RETURNING job_id, epoch, claims, news

-- name: running
SELECT tenant, count(*) FROM lease WHERE owner IS NOT NULL AND queue = :queue GROUP BY tenant

-- name: fences
SELECT job_id, owner, epoch, news, claims FROM lease
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
ORDER BY job_id FOR UPDATE  -- postgres

-- name: end_leases
DELETE FROM lease
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: release
UPDATE lease SET owner = NULL, ready = :ready, due_at = :due_at, wakes = :wakes, claims = 0
WHERE job_id = :id

-- name: progressed
UPDATE lease SET claims = 0 WHERE job_id = :id

-- name: wake_parents
UPDATE lease SET
  news = news + 1,
  ready = CASE WHEN owner IS NULL AND wakes = 1 THEN 1 ELSE ready END,
  due_at = CASE WHEN owner IS NULL AND wakes = 1 THEN :now ELSE due_at END
WHERE job_id IN (  -- sqlite
WHERE job_id = ANY(ARRAY(  -- postgres
  SELECT parent FROM job
  WHERE parent IS NOT NULL AND id IN (SELECT value FROM json_each(:ids))  -- sqlite
  WHERE parent IS NOT NULL AND id = ANY(:ids)  -- postgres
)  -- sqlite
))  -- postgres

-- name: wake_undoing_parent
UPDATE lease SET
  news = news + 1,
  ready = CASE WHEN owner IS NULL AND wakes = 1 THEN 1 ELSE ready END,
  due_at = CASE WHEN owner IS NULL AND wakes = 1 THEN :now ELSE due_at END
WHERE job_id = (SELECT parent FROM job WHERE id = :id)
  AND (SELECT state FROM job WHERE id = lease.job_id) = 'COMPENSATING'

-- name: wake
UPDATE lease SET
  news = news + 1,
  ready = CASE WHEN owner IS NULL AND wakes = 1 THEN 1 ELSE ready END,
  due_at = CASE WHEN owner IS NULL AND wakes = 1 THEN :now ELSE due_at END
WHERE job_id = :id

-- name: make_due
UPDATE lease SET
  news = news + 1,
  ready = CASE WHEN owner IS NULL AND :due = 1 THEN 1 ELSE ready END,
  due_at = CASE WHEN owner IS NULL AND :due = 1 THEN :now ELSE due_at END
WHERE job_id = :id

-- name: park
UPDATE lease SET news = news + 1, ready = 0, due_at = NULL, wakes = 0 WHERE job_id = :id

-- name: renew
UPDATE lease SET until = :until
WHERE owner = :owner
  AND job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  AND job_id = ANY(ARRAY(  -- postgres
    -- In the order in which writes lock them.  -- postgres
    SELECT job_id FROM lease WHERE job_id = ANY(:ids) ORDER BY job_id FOR UPDATE))  -- postgres
RETURNING job_id, epoch

-- name: news
SELECT job_id, news, (SELECT request FROM job WHERE id = lease.job_id)
FROM lease WHERE owner = :owner

-- name: reap_expired
UPDATE lease SET owner = NULL, ready = 1, due_at = :now
WHERE job_id IN (  -- sqlite
WHERE job_id = ANY(ARRAY(  -- postgres
  SELECT job_id FROM lease
  WHERE owner IS NOT NULL AND until < :clock
  ORDER BY until
  LIMIT :limit
  FOR UPDATE SKIP LOCKED  -- postgres
)  -- sqlite
))  -- postgres
RETURNING job_id

-- name: reap_dead
UPDATE lease SET owner = NULL, ready = 1, due_at = :now
WHERE owner IN (SELECT value FROM json_each(:dead))  -- sqlite
WHERE owner = ANY(:dead)  -- postgres
RETURNING job_id

-- name: next_due
SELECT min(due_at) FROM lease  -- sqlite
WHERE owner IS NULL AND due_at IS NOT NULL  -- sqlite
  AND queue IN (SELECT value FROM json_each(:queues))  -- sqlite
SELECT min(due_at) FROM unnest(:queues::text[]) AS wanted (name), LATERAL (  -- postgres
  (SELECT due_at FROM lease WHERE ready = 1 AND queue = wanted.name  -- postgres
   ORDER BY priority DESC, tag LIMIT 1)  -- postgres
  UNION ALL  -- postgres
  (SELECT due_at FROM lease WHERE ready = 0 AND due_at IS NOT NULL AND queue = wanted.name  -- postgres
   ORDER BY due_at LIMIT 1)) AS first  -- postgres
