-- name: share_graph_thread
-- A put relies on pieces that are there; nobody deletes some meanwhile.
SELECT pg_advisory_xact_lock_shared(hashtextextended(:name, 0))  -- postgres
SELECT 1 WHERE :name IS NOT NULL  -- sqlite

-- name: graph_pieces_known
SELECT digest FROM langgraph_piece
WHERE tenant = :tenant AND thread = :thread
  AND digest IN (SELECT value FROM json_each(:digests))  -- sqlite
  AND digest = ANY(:digests)  -- postgres

-- name: graph_pieces
SELECT digest, data FROM langgraph_piece
WHERE tenant = :tenant AND thread = :thread
  AND digest IN (SELECT value FROM json_each(:digests))  -- sqlite
  AND digest = ANY(:digests)  -- postgres

-- name: insert_graph_piece
INSERT INTO langgraph_piece (tenant, thread, digest, data)
VALUES (:tenant, :thread, :digest, :data)
ON CONFLICT DO NOTHING

-- name: put_graph_value
INSERT INTO langgraph_value (tenant, thread, ns, channel, version, data, pieces)
VALUES (:tenant, :thread, :ns, :channel, :version, :data, :pieces)
-- use: newer_graph_value

-- part: newer_graph_value
ON CONFLICT (tenant, thread, ns, channel, version) DO UPDATE SET
  data = excluded.data, pieces = excluded.pieces

-- name: put_graph_checkpoint
INSERT INTO langgraph_checkpoint (tenant, thread, ns, id, parent, run, root, versions, deltas,
                                  metadata, data)
VALUES (:tenant, :thread, :ns, :id, :parent, :run, :root, :versions, :deltas, :metadata, :data)
-- use: newer_graph_checkpoint

-- part: newer_graph_checkpoint
ON CONFLICT (tenant, thread, ns, id) DO UPDATE SET
  parent = excluded.parent, run = excluded.run, root = excluded.root, versions = excluded.versions,
  deltas = excluded.deltas, metadata = excluded.metadata, data = excluded.data

-- name: put_graph_write
INSERT INTO langgraph_write (tenant, thread, ns, checkpoint, task, idx, path, channel, data)
VALUES (:tenant, :thread, :ns, :checkpoint, :task, :idx, :path, :channel, :data)
-- use: newer_graph_write

-- part: newer_graph_write
-- A write that is repeated is the same; an error or an interrupt takes the place of the one before.
ON CONFLICT (tenant, thread, ns, checkpoint, task, idx) DO UPDATE SET
  path = excluded.path, channel = excluded.channel, data = excluded.data
WHERE excluded.idx < 0

-- name: prove_progress
UPDATE lease SET claims = 0 WHERE job_id = :id AND owner = :owner AND claims > 0

-- name: graph_checkpoint
SELECT thread, ns, id, parent, versions, deltas, metadata, data FROM langgraph_checkpoint
WHERE tenant = :tenant AND thread = :thread AND ns = :ns
  AND id = :id  -- if id
ORDER BY id DESC
LIMIT 1

-- name: graph_checkpoints
SELECT thread, ns, id, parent, versions, deltas, metadata, data FROM langgraph_checkpoint
WHERE tenant = :tenant
  AND thread = :thread  -- if thread
  AND ns = :ns  -- if ns
  AND id = :id  -- if id
  AND id < :before  -- if before
  AND (id, thread, ns) < (:last_id, :last_thread, :last_ns)  -- if last_id
ORDER BY id DESC, thread DESC, ns DESC
LIMIT :limit

-- name: graph_values
SELECT channel, version, data, pieces FROM langgraph_value
JOIN json_each(:versions) AS wanted ON channel = wanted.key AND version = wanted.value  -- sqlite
JOIN jsonb_each_text(:versions::jsonb) AS wanted ON channel = wanted.key AND version = wanted.value  -- postgres
WHERE tenant = :tenant AND thread = :thread AND ns = :ns

-- name: graph_writes
SELECT task, path, idx, channel, data FROM langgraph_write
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND checkpoint = :checkpoint
ORDER BY path, task, idx

-- name: graph_bones
SELECT ns, id, parent, run, root, versions, deltas FROM langgraph_checkpoint
WHERE tenant = :tenant AND thread = :thread

-- name: graph_value_keys
SELECT ns, channel, version, pieces FROM langgraph_value
WHERE tenant = :tenant AND thread = :thread

-- name: graph_piece_keys
SELECT digest FROM langgraph_piece WHERE tenant = :tenant AND thread = :thread

-- name: threads_of_runs
SELECT DISTINCT thread FROM langgraph_checkpoint
WHERE tenant = :tenant
  AND run IN (SELECT value FROM json_each(:runs))  -- sqlite
  AND run = ANY(:runs)  -- postgres

-- name: delete_graph_checkpoint
DELETE FROM langgraph_checkpoint
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND id = :id

-- name: delete_graph_writes_of
DELETE FROM langgraph_write
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND checkpoint = :id

-- name: orphan_graph_checkpoint
UPDATE langgraph_checkpoint SET parent = NULL
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND id = :id

-- name: delete_graph_value
DELETE FROM langgraph_value
WHERE tenant = :tenant AND thread = :thread AND ns = :ns AND channel = :channel
  AND version = :version

-- name: delete_graph_piece
DELETE FROM langgraph_piece WHERE tenant = :tenant AND thread = :thread AND digest = :digest

-- name: delete_graph_checkpoints
DELETE FROM langgraph_checkpoint WHERE tenant = :tenant AND thread = :thread

-- name: delete_graph_writes
DELETE FROM langgraph_write WHERE tenant = :tenant AND thread = :thread

-- name: delete_graph_values
DELETE FROM langgraph_value WHERE tenant = :tenant AND thread = :thread

-- name: delete_graph_pieces
DELETE FROM langgraph_piece WHERE tenant = :tenant AND thread = :thread

-- name: copy_graph_checkpoints
INSERT INTO langgraph_checkpoint (tenant, thread, ns, id, parent, run, root, versions, deltas,
                                  metadata, data)
SELECT tenant, :target, ns, id, parent, run, root, versions, deltas, metadata, data
FROM langgraph_checkpoint WHERE tenant = :tenant AND thread = :thread
ON CONFLICT DO NOTHING

-- name: copy_graph_writes
INSERT INTO langgraph_write (tenant, thread, ns, checkpoint, task, idx, path, channel, data)
SELECT tenant, :target, ns, checkpoint, task, idx, path, channel, data
FROM langgraph_write WHERE tenant = :tenant AND thread = :thread
ON CONFLICT DO NOTHING

-- name: copy_graph_values
INSERT INTO langgraph_value (tenant, thread, ns, channel, version, data, pieces)
SELECT tenant, :target, ns, channel, version, data, pieces
FROM langgraph_value WHERE tenant = :tenant AND thread = :thread
ON CONFLICT DO NOTHING

-- name: copy_graph_pieces
INSERT INTO langgraph_piece (tenant, thread, digest, data)
SELECT tenant, :target, digest, data FROM langgraph_piece
WHERE tenant = :tenant AND thread = :thread
ON CONFLICT DO NOTHING
