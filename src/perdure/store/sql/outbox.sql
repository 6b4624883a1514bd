-- name: put_notice
INSERT INTO notice (id, job_id, approval_id, channel, kind, state, due_at, data)
VALUES (:id, :job_id, :approval_id, :channel, :kind, :state, :due_at, :data)
ON CONFLICT DO NOTHING

-- name: take_notices
UPDATE notice SET due_at = :until
WHERE id IN (  -- sqlite
WHERE id = ANY(ARRAY(  -- postgres
  SELECT id FROM notice
  WHERE state = 'WAITING' AND due_at <= :now
    AND channel IN (SELECT value FROM json_each(:channels))  -- sqlite
    AND channel = ANY(:channels)  -- postgres
  ORDER BY due_at
  LIMIT :limit
  FOR UPDATE SKIP LOCKED  -- postgres
)  -- sqlite
))  -- postgres
RETURNING data

-- name: change_notice
UPDATE notice SET state = :state, due_at = :due_at, data = :data WHERE id = :id AND state = 'WAITING'

-- name: notices_of_approval
SELECT data FROM notice WHERE approval_id = :id AND kind = 'approval.asked'

-- name: notices
SELECT data FROM notice WHERE job_id = :id ORDER BY id

-- name: delete_notices
DELETE FROM notice
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
