-- name: insert_message
INSERT INTO message (job_id, topic, payload, key, sent_at) VALUES (:id, :topic, :payload, :key, :now)
ON CONFLICT DO NOTHING

-- name: insert_numbered_message
INSERT INTO message (no, job_id, topic, payload, key, sent_at)
OVERRIDING SYSTEM VALUE  -- postgres
VALUES (:no, :id, :topic, :payload, :key, :now)
ON CONFLICT DO NOTHING

-- name: messages
SELECT job_id, no, topic, payload, sent_at FROM message
WHERE taken_at IS NULL
  AND job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  AND job_id = ANY(:ids)  -- postgres
ORDER BY job_id, no

-- name: take_messages
UPDATE message SET taken_at = :now
WHERE job_id = :id AND taken_at IS NULL
  AND no IN (SELECT value FROM json_each(:nos))  -- sqlite
  AND no = ANY(:nos)  -- postgres

-- name: delete_messages
DELETE FROM message
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: message_known
SELECT 1 FROM message WHERE job_id = :id AND key = :key
