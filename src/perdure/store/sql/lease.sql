-- part: readable
-- Whether a worker has all keys of the store: without them it would fail what it claims.
NOT EXISTS (
  SELECT 1 FROM fact WHERE name >= 'encryption key ' AND name < 'encryption key!'
    AND substr(name, 16) NOT IN (SELECT value FROM json_each(:keys)))  -- sqlite
    AND substr(name, 16) NOT IN (SELECT json_array_elements_text(:keys::json)))  -- postgres

-- part: is_stuck
-- A job is stuck while a worker has it and sees no progress, or has not renewed its lease in time.
lease.owner >= '' AND (lease.stalled = 1 OR lease.until < :clock)

-- part: freed
-- The lease of an owner that is gone; it had the job until now, or until its lease has run out.
UPDATE lease SET owner = NULL, ready = 1, due_at = :now,
                 worked = worked + max(0, min(:clock, until) - since)  -- sqlite
                 worked = worked + greatest(0, least(:clock, until) - since)  -- postgres

-- name: insert_lease
INSERT INTO lease (job_id, tenant, queue, kind, priority, tag, ready, due_at, wakes, owner, epoch,
                   until, claims, news, worked, since)
VALUES (:id, :tenant, :queue, :kind, :priority, :tag, :ready, :due_at, 0, NULL, :epoch, 0, 0, 0,
        :worked, 0)

-- name: lock_lease
SELECT owner, epoch FROM lease WHERE job_id = :id
FOR UPDATE  -- postgres

-- name: wake_timers
UPDATE lease SET ready = 1
WHERE ready = 0 AND due_at <= :now AND queue = :queue  -- sqlite
WHERE job_id = ANY(ARRAY(  -- postgres
  SELECT job_id FROM lease WHERE ready = 0 AND due_at <= :now AND queue = :queue  -- postgres
  ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED))  -- postgres

-- name: change_kind
UPDATE lease SET kind = :kind WHERE job_id = :id

-- name: ready_kinds
-- The kinds of ready jobs, found by skipping from one to the next in the index: however many jobs
-- wait that nobody here knows, they are passed over in one step.
WITH RECURSIVE present (kind) AS (
  SELECT (SELECT min(kind) FROM lease WHERE ready = 1 AND queue = :queue)
  UNION ALL
  SELECT (SELECT min(lease.kind) FROM lease
          WHERE ready = 1 AND queue = :queue AND lease.kind > present.kind)
  FROM present WHERE present.kind IS NOT NULL
)
SELECT kind FROM present
WHERE kind IS NOT NULL
  AND (:kinds IS NULL  -- sqlite
       OR kind IN (SELECT value FROM json_each(:kinds))  -- sqlite
  AND (:kinds::json IS NULL  -- postgres
       OR kind IN (SELECT json_array_elements_text(:kinds::json))  -- postgres
       OR (SELECT NOT EXISTS (
            SELECT 1 FROM json_each(plan_kind.steps) AS step  -- sqlite
            WHERE step.value NOT IN (SELECT value FROM json_each(:steps)))  -- sqlite
            SELECT 1 FROM json_array_elements_text(plan_kind.steps::json) AS step (name)  -- postgres
            WHERE step.name NOT IN (SELECT json_array_elements_text(:steps::json)))  -- postgres
            FROM plan_kind WHERE plan_kind.kind = present.kind))
  AND
  -- use: readable

-- name: ready
SELECT job_id, tenant, priority, tag FROM lease
WHERE ready = 1 AND queue = :queue AND kind = :kind
ORDER BY priority DESC, tag
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres

-- name: ready_but
SELECT job_id, tenant, priority, tag FROM lease
WHERE ready = 1 AND queue = :queue AND kind = :kind
  AND tenant NOT IN (SELECT value FROM json_each(:full))  -- sqlite
  AND tenant <> ALL(:full)  -- postgres
ORDER BY priority DESC, tag
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres

-- name: claim
UPDATE lease SET owner = :owner, epoch = epoch + 1, until = :until, claims = claims + 1,
                 ready = 0, due_at = NULL, since = :clock, stalled = 0
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
UPDATE lease SET owner = NULL, ready = :ready, due_at = :due_at, wakes = :wakes, claims = 0,
                 awaits = :awaits, gathers = :gathers, progress = NULL,
                 worked = worked + max(0, :clock - since)  -- sqlite
                 worked = worked + greatest(0, :clock - since)  -- postgres
WHERE job_id = :id

-- name: not_ended
SELECT count(*) FROM lease
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: progressed
UPDATE lease SET claims = 0 WHERE job_id = :id

-- name: wake_parent
-- A parent is due only when as many of its children have ended as its code waits for.
UPDATE lease SET
  ends = ends + :number,
  awaits = awaits - :number,
  ready = CASE WHEN owner IS NULL AND wakes = 1 AND awaits <= :number AND gathers = 0 THEN 1
               ELSE ready END,
  due_at = CASE WHEN owner IS NULL AND wakes = 1 AND awaits <= :number
                     AND (due_at IS NULL OR due_at > :now + gathers) THEN :now + gathers
                ELSE due_at END
WHERE job_id = :id

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
UPDATE lease SET until = :until, since = :clock,
                 worked = worked + max(0, :clock - since)  -- sqlite
                 worked = worked + greatest(0, :clock - since)  -- postgres
WHERE owner = :owner
  AND job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  AND job_id = ANY(ARRAY(  -- postgres
    -- In the order in which writes lock them.  -- postgres
    SELECT job_id FROM lease WHERE job_id = ANY(:ids) ORDER BY job_id FOR UPDATE))  -- postgres
RETURNING job_id, epoch

-- name: stall
UPDATE lease SET stalled = :stalled WHERE job_id = :id

-- name: report
UPDATE lease SET progress = :progress WHERE job_id = :id AND owner = :owner AND epoch = :epoch

-- name: news
SELECT job_id, news, (SELECT request FROM job WHERE id = lease.job_id), ends
FROM lease WHERE owner = :owner

-- name: expired
-- Whether a lease has run out, and whether a worker is gone.
SELECT EXISTS (SELECT 1 FROM lease WHERE owner >= '' AND until < :clock),
       EXISTS (SELECT 1 FROM worker WHERE heartbeat_at < :limit)

-- name: reap_expired
-- use: freed
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
-- use: freed
WHERE owner IN (SELECT value FROM json_each(:dead))  -- sqlite
WHERE owner = ANY(:dead)  -- postgres
RETURNING job_id

-- name: outlook
-- For each queue that is not paused: whether a job is ready that this worker knows, when the next
-- timer is due, and the time of the server.
WITH RECURSIVE wanted (name) AS (
  SELECT value FROM json_each(:queues)  -- sqlite
  SELECT given.name FROM unnest(:queues::text[]) AS given (name)  -- postgres
  WHERE (SELECT paused FROM queue WHERE queue.name = value) IS NOT 1  -- sqlite
  WHERE coalesce((SELECT paused FROM queue WHERE queue.name = given.name), 0) = 0  -- postgres
), present (queue, kind) AS (
  SELECT name, (SELECT min(kind) FROM lease WHERE ready = 1 AND queue = wanted.name) FROM wanted
  UNION ALL
  SELECT queue, (SELECT min(lease.kind) FROM lease
                 WHERE ready = 1 AND lease.queue = present.queue AND lease.kind > present.kind)
  FROM present WHERE present.kind IS NOT NULL
)
SELECT name,
  EXISTS (SELECT 1 FROM present WHERE queue = wanted.name AND kind IS NOT NULL
    AND (:kinds IS NULL  -- sqlite
         OR kind IN (SELECT value FROM json_each(:kinds))  -- sqlite
    AND (:kinds::json IS NULL  -- postgres
         OR kind IN (SELECT json_array_elements_text(:kinds::json))  -- postgres
         OR (SELECT NOT EXISTS (
              SELECT 1 FROM json_each(plan_kind.steps) AS step  -- sqlite
              WHERE step.value NOT IN (SELECT value FROM json_each(:steps)))  -- sqlite
              SELECT 1 FROM json_array_elements_text(plan_kind.steps::json) AS step (name)  -- postgres
              WHERE step.name NOT IN (SELECT json_array_elements_text(:steps::json)))  -- postgres
              FROM plan_kind WHERE plan_kind.kind = present.kind))
    AND
    -- use: readable
  ),
  (SELECT due_at FROM lease WHERE ready = 0 AND due_at IS NOT NULL AND queue = wanted.name
   ORDER BY due_at LIMIT 1),
  NULL  -- sqlite
  extract(epoch FROM clock_timestamp())::float8  -- postgres
FROM wanted
