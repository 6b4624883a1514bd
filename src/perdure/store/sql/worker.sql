-- name: register_worker
INSERT INTO worker (owner, info, definitions, heartbeat_at) VALUES (:owner, :info, :definitions, :clock)
ON CONFLICT (owner) DO UPDATE SET
  info = excluded.info, definitions = excluded.definitions, heartbeat_at = excluded.heartbeat_at

-- name: delete_worker
DELETE FROM worker WHERE owner = :owner

-- name: workers
SELECT owner, :clock - heartbeat_at, info, definitions,
       (SELECT count(*) FROM lease WHERE lease.owner = worker.owner)
FROM worker ORDER BY owner

-- name: count_workers
SELECT count(*) FROM worker WHERE heartbeat_at >= :since

-- name: publish
INSERT INTO definitions (digest, data, published_at) VALUES (:digest, :data, :now)
ON CONFLICT (digest) DO UPDATE SET published_at = excluded.published_at

-- name: forget_definitions
DELETE FROM definitions WHERE published_at < :before
  AND (SELECT 1 FROM worker WHERE worker.definitions = definitions.digest LIMIT 1) IS NULL

-- name: definitions
SELECT digest, published_at, data,
       (SELECT count(*) FROM worker WHERE worker.definitions = definitions.digest)
FROM definitions ORDER BY published_at DESC, digest

-- name: forget_silent_workers
DELETE FROM worker
WHERE heartbeat_at < :limit AND (SELECT 1 FROM lease WHERE lease.owner = worker.owner LIMIT 1) IS NULL

-- name: keep_fact
INSERT INTO fact (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING

-- name: put_fact
INSERT INTO fact (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: key_facts
-- The keys that payloads of this store are, or were, encrypted with.
SELECT name FROM fact WHERE name >= 'encryption key ' AND name < 'encryption key!' ORDER BY name

-- name: forget_fact
DELETE FROM fact WHERE name = :name

-- name: fact
SELECT value FROM fact WHERE name = :name

-- name: running_of
-- Of jobs that are owned, which are as many as all workers can have.
SELECT owner, count(*) FROM lease
WHERE owner >= '' AND tenant = :tenant
GROUP BY owner
