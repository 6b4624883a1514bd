-- name: insert_event
INSERT INTO event (job_id, type, data, actor, at) VALUES (:id, :type, :data, :actor, :at)

-- name: insert_numbered_event
INSERT INTO event (no, job_id, type, data, actor, at)
OVERRIDING SYSTEM VALUE  -- postgres
VALUES (:no, :id, :type, :data, :actor, :at)

-- name: events
SELECT type, data, actor, at, no FROM event WHERE job_id = :id AND no > :after ORDER BY no LIMIT :limit

-- name: has_event
SELECT 1 FROM event
WHERE job_id = :id AND at >= :since
  AND type IN (SELECT value FROM json_each(:types))  -- sqlite
  AND type = ANY(:types)  -- postgres
LIMIT 1

-- name: last_event_at
SELECT max(at) FROM event WHERE job_id = :id

-- name: delete_events
DELETE FROM event
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
