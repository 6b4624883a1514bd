-- name: put_schedule
INSERT INTO schedule (name, cron, job, timezone, catch_up, paused, next_at, last_at)
VALUES (:name, :cron, :job, :timezone, :catch_up, :paused, :next_at, :last_at)
ON CONFLICT (name) DO UPDATE SET
  cron = excluded.cron, job = excluded.job, timezone = excluded.timezone,
  catch_up = excluded.catch_up, paused = excluded.paused, next_at = excluded.next_at,
  last_at = coalesce(excluded.last_at, schedule.last_at)

-- name: schedules
SELECT name, cron, job, timezone, catch_up, paused, next_at, last_at FROM schedule ORDER BY name

-- name: fire
UPDATE schedule SET next_at = :next_at, last_at = :expected
WHERE name = :name AND next_at = :expected AND paused = 0

-- name: delete_schedule
DELETE FROM schedule WHERE name = :name

-- name: pause_schedule
UPDATE schedule SET paused = :paused, next_at = :next_at WHERE name = :name
