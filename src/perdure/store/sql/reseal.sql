-- Writing rows again under another key. The statements that read and write the rows are made from the
-- declarations of the tables, in `sealing.py`.

-- name: begin_reseal
-- The rules about what never changes do not hold for the same value under another key.
INSERT INTO fact (name, value) VALUES ('resealing', '')  -- sqlite
SELECT set_config('perdure.resealing', 'on', true)  -- postgres

-- name: end_reseal
-- Within the transaction: others never see it.
DELETE FROM fact WHERE name = 'resealing'  -- sqlite
SELECT set_config('perdure.resealing', 'off', true)  -- postgres

-- name: sealed_jobs
-- Whether a job is encrypted; reads all jobs if none is.
SELECT 1 FROM job
WHERE substr(input, 1, 2) = char(9) || '"'  -- sqlite
WHERE left(input, 2) = chr(9) || '"'  -- postgres
LIMIT 1

-- name: next_event_no
SELECT coalesce(max(no), 0) + 1 FROM event  -- sqlite
SELECT nextval(pg_get_serial_sequence('event', 'no')) FROM generate_series(1, :count)  -- postgres

-- name: next_message_no
SELECT coalesce(max(no), 0) + 1 FROM message  -- sqlite
SELECT nextval(pg_get_serial_sequence('message', 'no')) FROM generate_series(1, :count)  -- postgres
