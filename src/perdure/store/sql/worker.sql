-- name: beat
INSERT INTO worker (owner, info, beat) VALUES (:owner, :info, :clock)
ON CONFLICT (owner) DO UPDATE SET info = excluded.info, beat = excluded.beat

-- name: sign_off
DELETE FROM worker WHERE owner = :owner

-- name: workers
SELECT owner, :clock - beat, info FROM worker ORDER BY owner

-- name: forget_silent_workers
DELETE FROM worker
WHERE beat < :limit AND (SELECT 1 FROM lease WHERE lease.owner = worker.owner LIMIT 1) IS NULL

-- name: keep_fact
INSERT INTO fact (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING

-- name: fact
SELECT value FROM fact WHERE name = :name
