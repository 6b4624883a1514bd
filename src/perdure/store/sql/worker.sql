-- name: heartbeat
INSERT INTO worker (owner, info, heartbeat_at) VALUES (:owner, :info, :clock)
ON CONFLICT (owner) DO UPDATE SET info = excluded.info, heartbeat_at = excluded.heartbeat_at

-- name: delete_worker
DELETE FROM worker WHERE owner = :owner

-- name: workers
SELECT owner, :clock - heartbeat_at, info FROM worker ORDER BY owner

-- name: forget_silent_workers
DELETE FROM worker
WHERE heartbeat_at < :limit AND (SELECT 1 FROM lease WHERE lease.owner = worker.owner LIMIT 1) IS NULL

-- name: keep_fact
INSERT INTO fact (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING

-- name: fact
SELECT value FROM fact WHERE name = :name
