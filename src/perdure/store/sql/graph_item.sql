-- part: graph_item_columns
SELECT namespace, key, data, vectors, created_at, updated_at, ttl FROM langgraph_item
WHERE tenant = :tenant AND (expires_at IS NULL OR expires_at > :now)

-- name: graph_item
-- use: graph_item_columns
  AND namespace = :namespace AND key = :key

-- name: newest_graph_items
-- use: graph_item_columns
  AND namespace >= :first AND namespace < :behind
ORDER BY updated_at DESC, namespace, key
LIMIT :limit OFFSET :offset

-- name: graph_items_after
-- use: graph_item_columns
  AND namespace >= :first AND namespace < :behind
  AND (namespace, key) > (:last_namespace, :last_key)  -- if last_key
ORDER BY namespace, key
LIMIT :limit

-- name: graph_namespaces
SELECT DISTINCT namespace FROM langgraph_item
WHERE tenant = :tenant AND (expires_at IS NULL OR expires_at > :now)
  AND namespace >= :first AND namespace < :behind

-- name: put_graph_item
INSERT INTO langgraph_item (tenant, namespace, key, data, vectors, created_at, updated_at, ttl,
                            expires_at)
VALUES (:tenant, :namespace, :key, :data, :vectors, :now, :now, :ttl, :expires_at)
ON CONFLICT (tenant, namespace, key) DO UPDATE SET
  data = excluded.data, vectors = excluded.vectors, updated_at = excluded.updated_at,
  ttl = excluded.ttl, expires_at = excluded.expires_at

-- name: delete_graph_item
DELETE FROM langgraph_item WHERE tenant = :tenant AND namespace = :namespace AND key = :key

-- name: refresh_graph_item
UPDATE langgraph_item SET expires_at = :now + ttl * 60
WHERE tenant = :tenant AND namespace = :namespace AND key = :key AND expires_at > :now

-- name: delete_expired_graph_items
DELETE FROM langgraph_item
WHERE tenant = :tenant AND (namespace, key) IN (
  SELECT namespace, key FROM langgraph_item
  WHERE tenant = :tenant AND expires_at <= :now
  LIMIT :limit)
