-- name: insert_payload
-- A chunk that is known is the same: it is named by its digest.
INSERT INTO payload (job_id, digest, data) VALUES (:id, :digest, :data)
ON CONFLICT DO NOTHING

-- name: payload
SELECT digest, data FROM payload
WHERE job_id = :id
  AND digest IN (SELECT value FROM json_each(:digests))  -- sqlite
  AND digest = ANY(:digests)  -- postgres

-- name: payload_names
SELECT digest FROM payload
WHERE job_id = :id
  AND digest IN (SELECT value FROM json_each(:digests))  -- sqlite
  AND digest = ANY(:digests)  -- postgres

-- name: copy_payload
INSERT INTO payload (job_id, digest, data)
SELECT :id, digest, data FROM payload
WHERE job_id = :source
  AND digest IN (SELECT value FROM json_each(:digests))  -- sqlite
  AND digest = ANY(:digests)  -- postgres
ON CONFLICT DO NOTHING

-- name: delete_payload
DELETE FROM payload
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
