-- name: insert_trace
INSERT INTO trace (job_id, parent) VALUES (:id, :parent) ON CONFLICT DO NOTHING

-- name: keep_trace
INSERT INTO trace (job_id, parent, last) VALUES (:id, :span, :span)
ON CONFLICT (job_id) DO UPDATE SET last = excluded.last

-- name: trace
SELECT parent, last FROM trace WHERE job_id = :id

-- name: delete_traces
DELETE FROM trace
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres
