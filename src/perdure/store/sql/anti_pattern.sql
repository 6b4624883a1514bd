-- Signs of anti-patterns: the job, and what was found. `jobs/anti_pattern.py` has the limits.

-- part: looked_at
looked_at (id) AS (
  SELECT job_id FROM lease
  UNION ALL
  SELECT id FROM (
    SELECT id FROM job WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT :ended_jobs
  ) AS ended
)

-- name: expired_leases
SELECT job_id, 'its lease expired ' || CAST((:clock - until) / 60 AS INTEGER) || ' minutes ago, and nobody took it over'
FROM lease
WHERE owner >= '' AND until < :clock - :expired
LIMIT :limit

-- name: silent_workers
SELECT min(lease.job_id), 'worker ' || worker.owner || ' has been silent for '
       || CAST((:clock - worker.heartbeat_at) / 60 AS INTEGER) || ' minutes and owns ' || count(*)
       || CASE WHEN count(*) = 1 THEN ' job' ELSE ' jobs' END
FROM worker JOIN lease ON lease.owner = worker.owner
WHERE worker.heartbeat_at < :clock - :dead
GROUP BY worker.owner, worker.heartbeat_at
LIMIT :limit

-- name: crashing_jobs
SELECT job_id, 'it was claimed ' || claims || ' times in a row without progress'
FROM lease WHERE claims > :crashes
LIMIT :limit

-- name: silent_steps
SELECT entry.job_id, entry.id || ' has run for ' || CAST((:now - entry.started_at) / 60 AS INTEGER)
       || ' minutes without a sign of progress'
FROM lease JOIN journal AS entry ON entry.job_id = lease.job_id
WHERE lease.owner >= '' AND entry.kind = 'step' AND entry.state = 'RUNNING'
  AND entry.started_at < :now - :silence AND entry.checkpoint_no = 0
  AND coalesce(lease.progress, '') NOT LIKE '%"' || entry.id || '"%'
LIMIT :limit

-- name: long_journals
WITH
-- use: looked_at
SELECT id, 'its journal has ' || last || ' entries'
FROM (SELECT id, (SELECT max(seq) + 1 FROM journal WHERE journal.job_id = looked_at.id) AS last
      FROM looked_at) AS counted
WHERE last > :entries
LIMIT :limit

-- name: costly_replays
SELECT id, 'it was claimed ' || epoch || ' times, and its journal has ' || last || ' entries'
FROM (SELECT job_id AS id, epoch,
             (SELECT max(seq) + 1 FROM journal WHERE journal.job_id = lease.job_id) AS last
      FROM lease WHERE epoch > 1) AS counted
WHERE last * epoch > :replayed
LIMIT :limit

-- name: large_results
-- What is large is not in the journal itself; what stands in its place says how large it is.
WITH
-- use: looked_at
SELECT job_id, id || ' returned ' || (size / 1024) || ' KB'
FROM (SELECT entry.job_id, entry.id,
             CAST(json_extract(entry.output, '$.bytes') AS INTEGER) AS size  -- sqlite
             (entry.output::json ->> 'bytes')::bigint AS size  -- postgres
      FROM looked_at JOIN journal AS entry ON entry.job_id = looked_at.id
      WHERE substr(entry.output, 1, 2) = ' {') AS result
WHERE size > :result_bytes
LIMIT :limit

-- name: large_checkpoints
WITH
-- use: looked_at
SELECT entry.job_id, 'a checkpoint of ' || entry.id || ' had '
       || (max(entry.checkpoint_size, coalesce(length(entry.checkpoint), 0)) / 1024) || ' KB'  -- sqlite
       || (greatest(entry.checkpoint_size, length(entry.checkpoint)) / 1024) || ' KB'  -- postgres
FROM looked_at JOIN journal AS entry ON entry.job_id = looked_at.id
WHERE length(entry.checkpoint) > :checkpoint_bytes OR entry.checkpoint_size > :checkpoint_bytes
LIMIT :limit

-- name: many_attempts
WITH
-- use: looked_at
SELECT entry.job_id, entry.id || ' is ' || entry.state || ' at attempt ' || entry.attempt
FROM looked_at JOIN journal AS entry ON entry.job_id = looked_at.id
WHERE entry.attempt > :attempts
LIMIT :limit

-- name: long_doubts
SELECT job_id, 'effect ' || no || ' (' || kind || ') has been in doubt for '
       || CAST((:now - called_at) / 3600 AS INTEGER) || ' h'
FROM effect
WHERE state = 'IN_DOUBT' AND called_at < :now - :doubt
LIMIT :limit

-- name: effects_without_undo
-- Only definitions know whether their step has a compensation.
WITH
-- use: looked_at
SELECT entry.name, effect.kind, count(*), max(effect.job_id)
FROM looked_at JOIN effect ON effect.job_id = looked_at.id
JOIN journal AS entry ON entry.job_id = effect.job_id AND entry.id = effect.step
WHERE effect.state IN ('INTENT', 'DONE', 'IN_DOUBT') AND effect.undo IS NULL AND entry.kind = 'step'
GROUP BY entry.name, effect.kind
ORDER BY entry.name, effect.kind
LIMIT :limit

-- name: unanswered_approvals
SELECT job_id, 'approval ' || id || ' has been pending for '
       || CAST((:now - created_at) / 86400 AS INTEGER) || ' days'
FROM approval
WHERE state = 'PENDING' AND created_at < :now - :unanswered
LIMIT :limit

-- name: endless_waits
SELECT job.id, job.name || ' has waited for a message for '
       || CAST((:now - job.started_at) / 86400 AS INTEGER) || ' days, and would do so for ever'
FROM lease JOIN job ON job.id = lease.job_id
WHERE lease.owner IS NULL AND lease.ready = 0 AND lease.due_at IS NULL
  AND job.state = 'WAITING' AND job.deadline_at IS NULL AND job.started_at < :now - :waited
  AND job.wait LIKE '%"kind":"message"%'
LIMIT :limit

-- name: overlapping_runs
-- A run of a schedule has a key that begins with its name: `nightly@2026-05-01T02:00:00Z`.
SELECT max(job.id), 'schedule ' || schedule.name || ' has ' || count(*) || ' runs that have not ended'
FROM lease
JOIN job ON job.id = lease.job_id
JOIN schedule ON schedule.tenant = job.tenant
  AND substr(job.key, 1, length(schedule.name) + 1) = schedule.name || '@'
GROUP BY schedule.tenant, schedule.name
HAVING count(*) > 1
LIMIT :limit

-- name: late_schedules
SELECT '', 'schedule ' || name || ' of tenant ' || tenant || ' is '
       || CAST((:now - next_at) / 60 AS INTEGER) || ' minutes late'
FROM schedule
WHERE paused = 0 AND next_at < :now - :lateness
LIMIT :limit

-- name: given_up_notices
SELECT job_id, channel || ' could not deliver ' || kind
       || CASE WHEN recipient = '' THEN '' ELSE ' to ' || recipient END
FROM notice
WHERE state = 'GIVEN_UP' AND due_at > :now - :given_up
LIMIT :limit

-- name: forgotten_queues
SELECT min(lease.job_id), 'queue ' || queue.name || ' is paused, and ' || count(*)
       || CASE WHEN count(*) = 1 THEN ' job waits' ELSE ' jobs wait' END
FROM queue JOIN lease ON lease.queue = queue.name AND lease.ready = 1
WHERE queue.paused = 1
GROUP BY queue.name
HAVING min(lease.due_at) < :now - :paused
LIMIT :limit
