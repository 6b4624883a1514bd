-- name: saved_views
SELECT name, query, saved_by, saved_at FROM saved_view WHERE tenant = :tenant ORDER BY name

-- name: save_view
INSERT INTO saved_view (tenant, name, query, saved_by, saved_at)
SELECT :tenant, :name, :query, :by, :now
WHERE (SELECT count(*) FROM saved_view WHERE tenant = :tenant AND name <> :name) < :most
ON CONFLICT (tenant, name) DO UPDATE SET
  query = excluded.query, saved_by = excluded.saved_by, saved_at = excluded.saved_at

-- name: delete_view
DELETE FROM saved_view WHERE tenant = :tenant AND name = :name
