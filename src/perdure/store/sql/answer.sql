-- name: take_answer
INSERT INTO answer (tenant, principal, key, digest, at) VALUES (:tenant, :principal, :key, :digest, :now)
ON CONFLICT DO NOTHING

-- name: retake_answer
-- One that began long ago and has no answer was given up: its server has died.
UPDATE answer SET at = :now
WHERE tenant = :tenant AND principal = :principal AND key = :key AND digest = :digest
  AND status IS NULL AND at < :before

-- name: answer
SELECT digest, status, body FROM answer
WHERE tenant = :tenant AND principal = :principal AND key = :key

-- name: keep_answer
UPDATE answer SET status = :status, body = :body
WHERE tenant = :tenant AND principal = :principal AND key = :key

-- name: drop_answer
DELETE FROM answer
WHERE tenant = :tenant AND principal = :principal AND key = :key AND status IS NULL

-- name: forget_answers
DELETE FROM answer WHERE at < :before
