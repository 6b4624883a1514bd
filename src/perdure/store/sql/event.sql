-- name: insert_event
INSERT INTO event (job_id, type, data, actor, at) VALUES (:id, :type, :data, :actor, :at)

-- name: events
SELECT type, data, actor, at, no FROM event WHERE job_id = :id AND no > :after ORDER BY no LIMIT :limit

-- name: delete_events
DELETE FROM event
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
