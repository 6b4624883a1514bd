-- name: journal_page
SELECT job_id, seq, id, kind, name, state, attempt,
       input, output, error, checkpoint,  -- if whole
       NULL, NULL, NULL, NULL,  -- if slim
       checkpoint_no, wake_at, started_at, ended_at, key
FROM journal
WHERE job_id = :id AND seq > :after
ORDER BY seq
LIMIT :limit

-- name: count_entries
SELECT count(*) FROM journal WHERE job_id = :id

-- name: count_children
SELECT count(*) FROM job WHERE parent = :id

-- name: newest_event
SELECT max(no) FROM event WHERE no > 0

-- name: events_since
-- The primary key finds them; those of a queue have no job.
SELECT no, job_id, type FROM event WHERE no > :after ORDER BY no LIMIT :limit

-- name: owned_jobs
SELECT job_id FROM lease WHERE owner > '' LIMIT :limit
