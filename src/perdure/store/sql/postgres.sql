-- name: upsert_entries
WITH entry AS (
  SELECT * FROM json_to_recordset(:entries::json) AS entry (
    job_id text, seq bigint, id text, kind text, name text, state text, attempt bigint, input text,
    output text, error text, checkpoint text, checkpoint_no bigint, wake_at float8,
    started_at float8, ended_at float8, owner text, epoch bigint)
), fence AS MATERIALIZED (
  -- Locked until the commit: a lease that is only looked at may be another's by then.
  SELECT job_id, owner, epoch FROM lease
  WHERE job_id IN (SELECT job_id FROM entry)
  ORDER BY job_id
  FOR SHARE
)
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at)
SELECT entry.job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
       checkpoint_no, wake_at, started_at, ended_at
FROM entry JOIN fence
  ON fence.job_id = entry.job_id AND fence.owner = entry.owner AND fence.epoch = entry.epoch
ON CONFLICT (job_id, seq) DO UPDATE SET
  state = excluded.state, attempt = excluded.attempt, input = coalesce(excluded.input, journal.input),
  output = excluded.output, error = excluded.error, checkpoint = excluded.checkpoint,
  checkpoint_no = excluded.checkpoint_no, wake_at = excluded.wake_at,
  started_at = coalesce(excluded.started_at, journal.started_at), ended_at = excluded.ended_at
RETURNING job_id, seq

-- name: clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))

-- name: begin_op
INSERT INTO op (lane, no, at) VALUES (:lane, 0, extract(epoch FROM clock_timestamp()))
ON CONFLICT (lane) DO UPDATE SET at = excluded.at

-- name: set_op
INSERT INTO op (lane, no, at) VALUES (:lane, :no, extract(epoch FROM clock_timestamp()))
ON CONFLICT (lane) DO UPDATE SET no = excluded.no, at = excluded.at

-- name: last_op
SELECT no FROM op WHERE lane = :lane FOR UPDATE

-- name: end_op
DELETE FROM op WHERE lane = :lane

-- name: forget_ops
DELETE FROM op WHERE at < extract(epoch FROM clock_timestamp()) - 30 * 86400

-- name: notify
SELECT pg_notify('perdure', :schema)
