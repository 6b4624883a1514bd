-- name: take_turns
INSERT INTO turn (queue, tenant, tag)
VALUES (:queue, :tenant, coalesce((SELECT tag FROM queue WHERE name = :queue), 0) + :number)
ON CONFLICT (queue, tenant) DO UPDATE SET tag = :number
  + max(turn.tag, excluded.tag - :number)  -- sqlite
  + greatest(turn.tag, excluded.tag - :number)  -- postgres
RETURNING tag

-- name: set_served
INSERT INTO queue (name, tag) VALUES (:queue, :tag)
ON CONFLICT (name) DO UPDATE SET tag = excluded.tag WHERE queue.tag < excluded.tag

-- name: served
SELECT tag, paused FROM queue WHERE name = :queue

-- name: pause_queue
INSERT INTO queue (name, tag, paused) VALUES (:queue, 0, :paused)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused

-- name: queues
-- Every queue that has jobs or was used, with how many jobs are ready, wait and run.
SELECT name, max(paused), sum(ready), sum(waiting), sum(running) FROM (
  SELECT name, paused, 0 AS ready, 0 AS waiting, 0 AS running FROM queue
  UNION ALL
  SELECT queue, 0, sum(ready), sum(CASE WHEN ready = 0 AND owner IS NULL THEN 1 ELSE 0 END),
         sum(CASE WHEN owner IS NULL THEN 0 ELSE 1 END)
  FROM lease
  WHERE tenant = :tenant  -- if tenant
  GROUP BY queue) AS counted
GROUP BY name ORDER BY name

-- name: unclaimed
-- How many jobs of each kind are ready in each queue, and one of them.
SELECT queue, kind, count(*), min(job_id) FROM lease
WHERE ready = 1 AND queue >= ''
  AND tenant = :tenant  -- if tenant
GROUP BY queue, kind ORDER BY queue, kind

-- name: paused_queues
SELECT name FROM queue WHERE paused = 1

-- name: keep_plan_kind
INSERT INTO plan_kind (kind, steps) VALUES (:kind, :steps) ON CONFLICT DO NOTHING

-- name: queue_claimed
SELECT claimed FROM queue WHERE name = :queue

-- name: set_claimed
INSERT INTO queue (name, tag, claimed) VALUES (:queue, 0, :claimed)
ON CONFLICT (name) DO UPDATE SET claimed = excluded.claimed
