-- name: audit_head
SELECT no, hash FROM audit WHERE tenant = :tenant ORDER BY no DESC LIMIT 1

-- name: insert_audit
INSERT INTO audit (tenant, no, line, hash) VALUES (:tenant, :no, :line, :hash)

-- name: audit_rows
-- Rows of one chain in order.
SELECT tenant, no, line, hash FROM audit
WHERE tenant = :tenant AND no >= :first ORDER BY no LIMIT :limit

-- name: audit_newest
SELECT tenant, no, line, hash FROM audit
WHERE tenant = :tenant AND no < :before ORDER BY no DESC LIMIT :limit

-- name: audit_tenants
SELECT DISTINCT tenant FROM audit ORDER BY tenant

-- name: tenant_of_job
SELECT tenant FROM job WHERE id = :id
