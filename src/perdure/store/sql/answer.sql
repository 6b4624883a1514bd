-- name: take_answer
INSERT INTO answer (tenant, principal, key, digest, taker, done, at)
VALUES (:tenant, :principal, :key, :digest, :taker, '', :now)
ON CONFLICT DO NOTHING

-- name: retake_answer
-- One that has no answer was given back, or began long ago: its server has died.
UPDATE answer SET at = :now, taker = :taker
WHERE tenant = :tenant AND principal = :principal AND key = :key
  AND status IS NULL AND (at < :before OR taker = '')

-- name: answer
SELECT digest, taker, done, status, body, needs FROM answer
WHERE tenant = :tenant AND principal = :principal AND key = :key

-- name: note_done
-- It is not given up as long as it goes on.
UPDATE answer SET done = done || :line, at = :now
WHERE tenant = :tenant AND principal = :principal AND key = :key AND taker = :taker
  AND status IS NULL

-- name: keep_answer
UPDATE answer SET status = :status, body = :body, needs = :needs
WHERE tenant = :tenant AND principal = :principal AND key = :key AND taker = :taker

-- name: give_back_answer
UPDATE answer SET taker = ''
WHERE tenant = :tenant AND principal = :principal AND key = :key AND taker = :taker
  AND status IS NULL

-- name: drop_answer
DELETE FROM answer
WHERE tenant = :tenant AND principal = :principal AND key = :key AND taker = '' AND done = ''
  AND status IS NULL

-- name: forget_answers
DELETE FROM answer WHERE at < :before
