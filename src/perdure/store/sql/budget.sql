-- name: budget
SELECT data FROM budget WHERE root_id = :id

-- name: lock_budget
SELECT data FROM budget WHERE root_id = :id
FOR UPDATE  -- postgres

-- name: budgets_of
-- In a fixed order, since each is locked.
SELECT root_id FROM budget
WHERE root_id IN (SELECT coalesce(budget_of, id) FROM job  -- sqlite
                  WHERE id IN (SELECT value FROM json_each(:ids)))  -- sqlite
WHERE root_id = ANY(ARRAY(SELECT coalesce(budget_of, id) FROM job WHERE id = ANY(:ids)))  -- postgres
ORDER BY root_id

-- name: put_budget
INSERT INTO budget (root_id, no, data) VALUES (:id, :no, :data)
ON CONFLICT (root_id) DO UPDATE SET no = excluded.no, data = excluded.data

-- name: delete_budgets
-- Unless a fork or a child may still spend from it.
DELETE FROM budget
WHERE root_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE root_id = ANY(:ids)  -- postgres
  AND (SELECT 1 FROM job WHERE job.id = root_id) IS NULL
  AND (SELECT 1 FROM job WHERE job.budget_of = root_id LIMIT 1) IS NULL
