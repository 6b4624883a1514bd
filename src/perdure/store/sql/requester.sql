-- name: insert_requester
INSERT INTO requester (job_id, person) VALUES (:id, :person) ON CONFLICT DO NOTHING

-- name: requesters
SELECT person FROM requester WHERE job_id = :id

-- name: requested_by
SELECT coalesce(root, id), tenant, "user" FROM job WHERE id = :id

-- name: delete_requesters
DELETE FROM requester
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- part: requesters_of_approval
-- As they are now, as a JSON list: a job may be started again while people are asked.
       (SELECT json_group_array(person) FROM requester WHERE requester.job_id =  -- sqlite
       (SELECT json_agg(person)::text FROM requester WHERE requester.job_id =  -- postgres
         (SELECT coalesce(root, id) FROM job WHERE job.id = approval.job_id)) AS requesters
