-- name: put_schedule
INSERT INTO schedule (tenant, name, cron, job, timezone, catch_up, paused, next_at, last_at)
VALUES (:tenant, :name, :cron, :job, :timezone, :catch_up, :paused, :next_at, :last_at)
-- A program puts its schedules at each start: a time that is due stays due, and a pause lasts.
ON CONFLICT (tenant, name) DO UPDATE SET
  cron = excluded.cron, job = excluded.job, timezone = excluded.timezone,
  catch_up = excluded.catch_up,
  next_at = CASE WHEN schedule.cron = excluded.cron AND schedule.timezone = excluded.timezone
                 THEN schedule.next_at ELSE excluded.next_at END

-- name: lock_schedule
SELECT name, cron, job, timezone, catch_up, paused, next_at, last_at FROM schedule
WHERE tenant = :tenant AND name = :name
FOR UPDATE  -- postgres

-- name: change_schedule_job
UPDATE schedule SET job = :job WHERE tenant = :tenant AND name = :name

-- name: schedules
SELECT name, cron, job, timezone, catch_up, paused, next_at, last_at, tenant FROM schedule
WHERE cron <> ''
  AND tenant = :tenant  -- if tenant
ORDER BY tenant, name

-- name: fire
UPDATE schedule SET next_at = :next_at, last_at = :expected
WHERE tenant = :tenant AND name = :name AND next_at = :expected AND paused = 0

-- name: delete_schedule
DELETE FROM schedule WHERE tenant = :tenant AND name = :name

-- name: pause_schedule
UPDATE schedule SET paused = :paused, next_at = :next_at WHERE tenant = :tenant AND name = :name

-- name: agenda
-- When schedules, approval timers and notices are due next, whether somebody asks something of the
-- worker, and the time of the server.
SELECT (SELECT 1 FROM worker_command WHERE owner = :owner AND answer IS NULL LIMIT 1),
       (SELECT min(next_at) FROM schedule WHERE paused = 0),
       (SELECT min(tick_at) FROM approval WHERE tick_at >= 0),
       (SELECT min((SELECT min(due_at) FROM notice  -- sqlite
                    WHERE state IN ('WAITING', 'SENDING') AND channel = given.value))  -- sqlite
        FROM json_each(:channels) AS given),  -- sqlite
       NULL  -- sqlite
       (SELECT min((SELECT min(due_at) FROM notice  -- postgres
                    WHERE state IN ('WAITING', 'SENDING') AND channel = given.name))  -- postgres
        FROM unnest(:channels::text[]) AS given (name)),  -- postgres
       extract(epoch FROM clock_timestamp())::float8  -- postgres
