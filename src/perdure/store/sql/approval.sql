-- name: insert_approval
INSERT INTO approval (id, tenant, job_id, step, state, action_hash, no, tick_at, created_at, data)
VALUES (:id, :tenant, :job_id, :step, :state, :action_hash, :no, :tick_at, :created_at, :data)
ON CONFLICT DO NOTHING

-- name: change_approval
UPDATE approval SET state = :state, action_hash = :action_hash, no = :no, tick_at = :tick_at,
                    created_at = :created_at, data = :data
WHERE id = :id AND no = :seen

-- name: approval
SELECT data,
-- use: requesters_of_approval
FROM approval WHERE id = :id

-- name: lock_approval
SELECT data,
-- use: requesters_of_approval
FROM approval WHERE id = :id
FOR UPDATE  -- postgres

-- name: approval_of_step
SELECT data,
-- use: requesters_of_approval
       , id
FROM approval WHERE job_id = :id AND step = :step
  AND state = :state  -- if state
ORDER BY created_at DESC, id DESC
LIMIT 1

-- name: approvals
SELECT data,
-- use: requesters_of_approval
       , id
FROM approval
WHERE created_at <= :until
  AND (created_at < :until OR id < :last)  -- if last
  AND state = :state  -- if state
  AND tenant = :tenant  -- if tenant
  AND job_id = :job  -- if job
ORDER BY created_at DESC, id DESC
LIMIT :limit

-- name: open_approvals
SELECT data,
-- use: requesters_of_approval
       , id
FROM approval
WHERE state = 'PENDING'
  AND job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  AND job_id = ANY(:ids)  -- postgres
ORDER BY job_id, step
FOR UPDATE  -- postgres

-- name: due_approvals
SELECT id FROM approval WHERE tick_at <= :now ORDER BY tick_at LIMIT :limit

-- name: put_link
INSERT INTO link (id, approval_id, data) VALUES (:id, :approval_id, :data)

-- name: link
SELECT link.data AS link, approval.data,
-- use: requesters_of_approval
       , approval.id
FROM link
JOIN approval ON approval.id = link.approval_id  -- sqlite
CROSS JOIN LATERAL (SELECT data, id, job_id FROM approval WHERE id = link.approval_id LIMIT 1) AS approval  -- postgres
WHERE link.id = :id

-- name: lock_link
SELECT data FROM link WHERE id = :id
FOR UPDATE  -- postgres

-- name: change_link
UPDATE link SET data = :data WHERE id = :id

-- name: delete_links
DELETE FROM link
WHERE approval_id IN (  -- sqlite
WHERE approval_id = ANY(ARRAY(  -- postgres
  SELECT id FROM approval
  WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
  WHERE job_id = ANY(:ids)  -- postgres
)  -- sqlite
))  -- postgres

-- name: delete_approvals
DELETE FROM approval
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
