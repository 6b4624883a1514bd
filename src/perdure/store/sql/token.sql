-- name: insert_token
INSERT INTO token (id, hash, tenant, principal, created_by, makers, created_at, expires_at, data)
VALUES (:id, :hash, :tenant, :principal, :created_by, :makers, :created_at, :expires_at, :data)

-- name: token_makers
SELECT DISTINCT makers FROM token
WHERE principal = :principal
  AND (tenant = :tenant OR tenant IS NULL)  -- if tenant

-- name: token_by_hash
SELECT id, hash, tenant, principal, created_by, created_at, expires_at, revoked_at, last_used_at, data, makers
FROM token WHERE hash = :hash

-- name: token
SELECT id, hash, tenant, principal, created_by, created_at, expires_at, revoked_at, last_used_at, data, makers
FROM token WHERE id = :id

-- name: api_tokens
SELECT id, hash, tenant, principal, created_by, created_at, expires_at, revoked_at, last_used_at, data, makers
FROM token
WHERE tenant = :tenant  -- if tenant
ORDER BY created_at DESC, id

-- name: revoke_token
UPDATE token SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL

-- name: use_token
UPDATE token SET last_used_at = :now WHERE id = :id AND coalesce(last_used_at, 0) < :before

-- name: insert_session
INSERT INTO session (hash, tenant, person, token_id, created_at, seen_at, expires_at, data)
VALUES (:hash, :tenant, :person, :token_id, :now, :now, :expires_at, :data)

-- name: session_by_hash
SELECT hash, tenant, person, token_id, created_at, seen_at, expires_at, data
FROM session WHERE hash = :hash

-- name: see_session
UPDATE session SET seen_at = :now WHERE hash = :hash AND seen_at < :before

-- name: delete_session
DELETE FROM session WHERE hash = :hash

-- name: delete_sessions_of_token
DELETE FROM session WHERE token_id = :id

-- name: delete_sessions_of_person
DELETE FROM session WHERE person = :person
  AND tenant IS :tenant  -- sqlite
  AND tenant IS NOT DISTINCT FROM :tenant  -- postgres

-- name: delete_old_sessions
DELETE FROM session WHERE expires_at < :now

-- name: insert_sign_in_link
INSERT INTO sign_in_link (hash, expires_at, data) VALUES (:hash, :expires_at, :data)

-- name: take_sign_in_link
DELETE FROM sign_in_link WHERE hash = :hash RETURNING expires_at, data

-- name: delete_old_sign_in_links
DELETE FROM sign_in_link WHERE expires_at < :now
