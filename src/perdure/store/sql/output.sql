-- name: topics
SELECT job_id, topic, last, emitted, pieces, size, dropped FROM output_topic
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
ORDER BY job_id, topic

-- name: topic
SELECT job_id, topic, last, emitted, pieces, size, dropped FROM output_topic
WHERE job_id = :id AND topic = :topic

-- name: put_topic
INSERT INTO output_topic (job_id, topic, last, emitted, pieces, size, dropped)
VALUES (:id, :topic, :last, :emitted, :pieces, :size, :dropped)
ON CONFLICT (job_id, topic) DO UPDATE SET
  last = excluded.last, emitted = excluded.emitted, pieces = excluded.pieces, size = excluded.size,
  dropped = excluded.dropped

-- name: insert_output
INSERT INTO output (job_id, topic, no, pieces, step, attempt, part, size, discards, data, at)
VALUES (:id, :topic, :no, :pieces, :step, :attempt, :part, :size, :discards, :data, :at)
ON CONFLICT DO NOTHING

-- name: output
SELECT no, pieces, step, attempt, at, data, discards FROM output
WHERE job_id = :id AND topic = :topic AND no > :after
ORDER BY no
LIMIT :limit

-- name: output_of_step
SELECT no, pieces, size, discards FROM output
WHERE job_id = :id AND topic = :topic AND no < :before AND step = :step AND part >= :part

-- name: delete_output_of_step
DELETE FROM output
WHERE job_id = :id AND topic = :topic AND no < :before AND step = :step AND part >= :part

-- name: keep_pieces
-- No reset takes back what belongs to no checkpoint of the journal that begins now.
UPDATE output SET part = -1 WHERE job_id = :id AND part >= 0

-- name: count_anew
UPDATE output_topic SET emitted = 0 WHERE job_id = :id

-- name: oldest_output
SELECT no, pieces, size FROM output
WHERE job_id = :id AND topic = :topic AND no < :newest
ORDER BY no
LIMIT :limit

-- name: drop_output
DELETE FROM output WHERE job_id = :id AND topic = :topic AND no <= :upto

-- name: delete_output
DELETE FROM output
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: delete_topics
DELETE FROM output_topic
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
