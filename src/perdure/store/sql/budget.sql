-- name: budget
SELECT data FROM budget WHERE root_id = :id

-- name: lock_budget
SELECT data FROM budget WHERE root_id = :id
FOR UPDATE  -- postgres

-- name: put_budget
INSERT INTO budget (root_id, no, data) VALUES (:id, :no, :data)
ON CONFLICT (root_id) DO UPDATE SET no = excluded.no, data = excluded.data

-- name: delete_budgets
DELETE FROM budget
WHERE root_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE root_id = ANY(:ids)  -- postgres
