-- name: upsert_entries
WITH entry AS (
  SELECT * FROM json_to_recordset(:entries::json) AS entry (
    job_id text, seq bigint, id text, kind text, name text, state text, attempt bigint, input text,
    output text, error text, checkpoint text, checkpoint_no bigint, wake_at float8,
    started_at float8, ended_at float8, owner text, epoch bigint, key text)
), fence AS MATERIALIZED (
  -- Locked until the commit: a lease that is only read may have another owner by then.
  SELECT job_id, owner, epoch FROM lease
  WHERE job_id = ANY(ARRAY(SELECT job_id FROM entry))
  ORDER BY job_id
  FOR SHARE
)
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at, key)
SELECT entry.job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
       checkpoint_no, wake_at, started_at, ended_at, key
FROM entry JOIN fence
  ON fence.job_id = entry.job_id AND fence.owner = entry.owner AND fence.epoch = entry.epoch
ON CONFLICT (job_id, seq) DO UPDATE SET
  id = excluded.id,  -- another id is refused: see journal_0_place
  state = excluded.state, attempt = excluded.attempt, input = coalesce(excluded.input, journal.input),
  output =
  -- use: kept_output
  , error = excluded.error, checkpoint = excluded.checkpoint,
  checkpoint_no = excluded.checkpoint_no,
  checkpoint_size = greatest(journal.checkpoint_size, length(journal.checkpoint)),
  wake_at = excluded.wake_at,
  started_at = coalesce(excluded.started_at, journal.started_at), ended_at = excluded.ended_at,
  key = excluded.key
-- A failure stands until a person takes it back: a late start does not change it.
WHERE journal.state <> 'FAILED' OR excluded.state NOT IN ('RUNNING', 'PENDING')
   OR journal.id <> excluded.id
RETURNING job_id, seq

-- name: upsert_effects
INSERT INTO effect (job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state,
                    in_doubt, key_ttl, details, result, problem, error, undo, proof, called_at,
                    ended_at, business, kept_until, last_called_at)
SELECT line.id, (SELECT coalesce(max(no), 0) FROM effect WHERE job_id = line.id) + place,
       line.tenant, key, step, part, ordinal, generation, kind, target, state, in_doubt, key_ttl,
       details, result, problem, error, undo, proof, called_at, ended_at, business, kept_until,
       last_called_at
FROM json_to_recordset(:effects::json) AS line (
       place bigint, id text, tenant text, key text, step text, part text, ordinal bigint,
       generation bigint, kind text, target text, state text, in_doubt text, key_ttl float8,
       details text, result text, problem text, error text, undo text, proof text,
       called_at float8, ended_at float8, business text, kept_until float8,
       last_called_at float8, owner text, epoch bigint)
CROSS JOIN LATERAL (
  SELECT FROM lease
  WHERE job_id = line.id AND lease.owner = line.owner AND lease.epoch = line.epoch
  FOR SHARE
) AS fence
ON CONFLICT (tenant, key) DO UPDATE SET
  job_id = excluded.job_id, step = excluded.step, part = excluded.part,
  ordinal = excluded.ordinal, state = excluded.state, result =
  -- use: kept_result
  , problem = excluded.problem, error = excluded.error, proof = excluded.proof,
  ended_at = excluded.ended_at, last_called_at = excluded.last_called_at
RETURNING tenant, key

-- name: write_both
WITH numbered AS ({number_commit}), written AS ({upsert_entries}), kept AS ({upsert_effects})
SELECT 1 FROM written UNION ALL SELECT 1 FROM kept

-- name: clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))

-- name: register_writer
INSERT INTO last_commit (writer, no, at) VALUES (:writer, 0, extract(epoch FROM clock_timestamp()))
ON CONFLICT DO NOTHING

-- name: number_commit
-- Within a statement that numbers itself, this is the time that all its parts see.
INSERT INTO last_commit (writer, no, at) VALUES (:writer, :no, extract(epoch FROM statement_timestamp()))
ON CONFLICT (writer) DO UPDATE SET no = excluded.no, at = excluded.at

-- name: close_commits
UPDATE last_commit SET closed = :no WHERE writer = :writer RETURNING no

-- name: unregister_writer
-- Unless numbers were closed: without its row, a commit that is still on its way would look new.
DELETE FROM last_commit WHERE writer = :writer AND closed = 0

-- name: forget_writers
DELETE FROM last_commit WHERE at < extract(epoch FROM clock_timestamp()) - 30 * 86400

-- name: notify
SELECT pg_notify('perdure', :schema)

-- name: claim_unlimited
-- Wakes what is due, picks, claims, and reads what was claimed. A lease is locked as it is then, but
-- messages are read as of the start of the statement, and so is the counter of news: a message that
-- comes in between is news to the owner.
WITH moment AS MATERIALIZED (
  SELECT extract(epoch FROM statement_timestamp())::float8 AS now
), wanted AS MATERIALIZED (
  SELECT given.name, coalesce(tag, 0) AS served
  FROM unnest(:queues::text[]) AS given (name)
  LEFT JOIN LATERAL (SELECT tag, paused FROM queue WHERE queue.name = given.name) AS row ON true
  WHERE coalesce(paused, 0) = 0 AND
  -- use: readable
), due AS MATERIALIZED (
  SELECT timer.* FROM wanted, moment, LATERAL (
    SELECT job_id, kind, priority, tag - served AS turn FROM lease
    WHERE ready = 0 AND due_at <= moment.now AND queue = wanted.name
    ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED) AS timer
), present AS MATERIALIZED (
  -- See `ready_kinds`.
  WITH RECURSIVE next (queue, served, kind) AS (
    SELECT name, served, (SELECT min(kind) FROM lease WHERE ready = 1 AND queue = wanted.name)
    FROM wanted
    UNION ALL
    SELECT queue, served, (SELECT min(lease.kind) FROM lease
                           WHERE ready = 1 AND lease.queue = next.queue AND lease.kind > next.kind)
    FROM next WHERE next.kind IS NOT NULL
  )
  SELECT queue, served, kind FROM next WHERE kind IS NOT NULL
), known AS MATERIALIZED (
  SELECT kind FROM (SELECT kind FROM present UNION SELECT kind FROM due) AS found
  WHERE :kinds::json IS NULL
     OR kind IN (SELECT json_array_elements_text(:kinds::json))
     OR (SELECT NOT EXISTS (
          SELECT 1 FROM json_array_elements_text(plan_kind.steps::json) AS step (name)
          WHERE step.name NOT IN (SELECT json_array_elements_text(:steps::json)))
          FROM plan_kind WHERE plan_kind.kind = found.kind)
), shares AS MATERIALIZED (
  -- How many of each kind are among the first, so that no more rows are locked than are taken.
  SELECT queue, served, kind, count(*) AS number FROM (
    SELECT present.* FROM present, LATERAL (
      SELECT priority, tag - served AS turn FROM lease
      WHERE ready = 1 AND queue = present.queue AND kind = present.kind
      ORDER BY priority DESC, tag LIMIT :free) AS first
    WHERE present.kind IN (SELECT kind FROM known)
    ORDER BY first.priority DESC, first.turn LIMIT :free) AS firsts
  GROUP BY queue, served, kind
), ready AS MATERIALIZED (
  SELECT next.* FROM shares, LATERAL (
    SELECT job_id, priority, tag - served AS turn FROM lease
    WHERE ready = 1 AND queue = shares.queue AND kind = shares.kind
    ORDER BY priority DESC, tag LIMIT shares.number FOR UPDATE SKIP LOCKED) AS next
), picked AS MATERIALIZED (
  SELECT job_id FROM (
    SELECT * FROM ready
    UNION ALL
    SELECT job_id, priority, turn FROM due WHERE kind IN (SELECT kind FROM known)) AS found
  ORDER BY priority DESC, turn LIMIT :free
), woken AS (
  UPDATE lease SET ready = 1
  WHERE job_id = ANY(ARRAY(SELECT job_id FROM due EXCEPT SELECT job_id FROM picked))
), claimed AS (
  UPDATE lease SET owner = :owner, epoch = epoch + 1, until = now + :lease, claims = claims + 1,
                   ready = 0, due_at = NULL, since = now, stalled = 0
  FROM moment WHERE job_id = ANY(ARRAY(SELECT job_id FROM picked))
  RETURNING job_id, queue, tag, epoch, claims, lease.worked AS worked_before
), started AS (
  UPDATE job SET
    state = CASE state WHEN 'COMPENSATING' THEN state ELSE 'RUNNING' END,
    started_at = coalesce(started_at, now),
    wait = NULL
  FROM moment WHERE id = ANY(ARRAY(SELECT job_id FROM picked))
  RETURNING job.*
), logged AS (
  INSERT INTO event (job_id, type, data, actor, at)
  SELECT job_id, 'claimed', '{}', :owner, now FROM picked, moment
)
SELECT id, tenant, "user", started.name, version, state, started.queue, priority, input, plan,
       result, error, wait, request, key, parent, parent_seq, forked_from, created_at,
       started_at, ended_at, deadline_at, NULL, :owner::text, claimed.epoch, claims,
       budget_of, 0, labels, worked_before, NULL, 0.0, 0, failed_undos,
       (SELECT news FROM lease WHERE lease.job_id = started.id), now, tag,
       (SELECT 1 FROM journal WHERE journal.job_id = started.id LIMIT 1) IS NULL
       AND (SELECT 1 FROM message WHERE message.job_id = started.id AND taken_at IS NULL LIMIT 1) IS NULL
       AND (claimed.epoch = 1
            OR (SELECT 1 FROM output_topic WHERE output_topic.job_id = started.id LIMIT 1) IS NULL)
FROM started JOIN claimed ON claimed.job_id = started.id JOIN wanted ON wanted.name = claimed.queue, moment
ORDER BY priority DESC, tag - served

-- name: claimed_before
-- What a claim took whose answer was lost: it is known by its time.
SELECT job_id, epoch, claims, news, at
FROM last_commit, LATERAL (SELECT * FROM lease WHERE owner = :owner AND until = at + :lease OFFSET 0) AS mine
WHERE writer = :writer

-- name: submit_new
-- Either all jobs are new and kept, or nothing is done.
WITH moment AS MATERIALIZED (
  SELECT extract(epoch FROM statement_timestamp())::float8 AS now
), given AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:jobs::json) AS given (
    place bigint, id text, tenant text, "user" text, name text, version text, queue text,
    priority bigint, input text, plan text, key text, fingerprint text, parent text,
    parent_seq bigint, forked_from text, budget_of text, labels text, delay float8, deadline float8,
    data text, actor text, kind text, steps text)
), known AS MATERIALIZED (
  SELECT 1 FROM given, LATERAL (
    (SELECT 1 FROM job WHERE job.id = given.id LIMIT 1)
    UNION ALL
    (SELECT 1 FROM job WHERE job.tenant = given.tenant AND job.key = given.key LIMIT 1)) AS found
  LIMIT 1
), fresh AS MATERIALIZED (
  SELECT *, count(*) OVER (PARTITION BY queue, tenant) AS number FROM given
  WHERE NOT EXISTS (SELECT 1 FROM known)
), added AS (
  INSERT INTO job (id, tenant, "user", name, version, state, queue, priority, input, plan,
                   key, fingerprint, parent, parent_seq, root, forked_from, budget_of, created_at,
                   deadline_at, labels)
  SELECT id, tenant, "user", name, version, 'PENDING', queue, priority, input, plan,
         key, fingerprint, parent, parent_seq,
         (SELECT coalesce(above.root, above.id) FROM job AS above WHERE above.id = fresh.parent),
         forked_from, budget_of, now, now + deadline, labels
  FROM fresh, moment
  RETURNING id
), planned AS (
  INSERT INTO plan_kind (kind, steps)
  SELECT DISTINCT kind, steps FROM fresh WHERE steps IS NOT NULL ORDER BY kind
  ON CONFLICT DO NOTHING
), turns AS (
  INSERT INTO turn (queue, tenant, tag)
  SELECT queue, tenant, coalesce((SELECT tag FROM queue WHERE queue.name = fresh.queue), 0) + number
  FROM fresh GROUP BY queue, tenant, number
  ORDER BY queue COLLATE "C", tenant COLLATE "C"  -- concurrent submissions lock in the same order
  ON CONFLICT (queue, tenant) DO UPDATE SET tag = greatest(excluded.tag, turn.tag + (
    SELECT number FROM fresh WHERE queue = excluded.queue AND tenant = excluded.tenant LIMIT 1))
  RETURNING queue, tenant, tag
), leased AS (
  INSERT INTO lease (job_id, tenant, queue, kind, priority, tag, ready, due_at, wakes, owner, epoch,
                     until, claims, news, worked, since)
  SELECT id, tenant, queue, kind, priority,
         tag - number + row_number() OVER (PARTITION BY queue, tenant ORDER BY place),
         CASE WHEN delay <= 0 THEN 1 ELSE 0 END, now + greatest(delay, 0), 0, NULL, 0, 0, 0, 0, 0, 0
  FROM fresh JOIN turns USING (queue, tenant), moment
), labelled AS (
  INSERT INTO label (job_id, name, value, created_at)
  SELECT id, label.key, label.value, now FROM fresh, moment, json_each_text(fresh.labels::json) AS label
), logged AS (
  INSERT INTO event (job_id, type, data, actor, at)
  SELECT id, 'submitted', data, actor, now FROM fresh, moment ORDER BY place
)
SELECT id FROM added

-- name: submitted_before
-- What a submission inserted whose answer was lost.
SELECT id FROM last_commit, LATERAL (SELECT * FROM job WHERE id = ANY(:ids) AND created_at = at OFFSET 0) AS ours
WHERE writer = :writer

-- name: server_settings
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit',
               'default_transaction_read_only', 'transaction_read_only')
UNION ALL
SELECT 'is_superuser', current_setting('is_superuser')

-- name: put_graph
-- What `put_graph` of `verbs/langgraph.py` does, as one statement.
WITH there AS MATERIALIZED (
  SELECT :lock = '' OR has_graph_pieces(:lock, :tenant, :thread, :relied::json) AS is_complete
), wrote AS (
  INSERT INTO langgraph_write (tenant, thread, ns, checkpoint, task, idx, path, channel, data)
  SELECT :tenant, :thread, ns, checkpoint, task, idx, path, channel, decode(data, 'base64')
  FROM json_to_recordset(:writes::json) AS given (
    ns text, checkpoint text, task text, idx bigint, path text, channel text, data text)
  -- use: newer_graph_write
), pieces AS (
  INSERT INTO langgraph_piece (tenant, thread, digest, data)
  SELECT :tenant, :thread, digest, decode(data, 'base64')
  FROM there, json_to_recordset(:pieces::json) AS given (digest text, data text)
  WHERE is_complete
  ON CONFLICT DO NOTHING
), valued AS (
  INSERT INTO langgraph_value (tenant, thread, ns, channel, version, data, pieces)
  SELECT :tenant, :thread, ns, channel, version, decode(data, 'base64'), decode(pieces, 'base64')
  FROM there, json_to_recordset(:values::json) AS given (
    ns text, channel text, version text, data text, pieces text)
  WHERE is_complete
  -- use: newer_graph_value
), kept AS (
  INSERT INTO langgraph_checkpoint (tenant, thread, ns, id, parent, run, root, versions, deltas,
                                    metadata, data)
  SELECT :tenant, :thread, ns, id, parent, run, root, versions, deltas,
         decode(metadata, 'base64'), decode(data, 'base64')
  FROM there, json_to_recordset(:checkpoints::json) AS given (
    ns text, id text, parent text, run text, root text, versions text, deltas text, metadata text,
    data text)
  WHERE is_complete
  -- use: newer_graph_checkpoint
)
SELECT 1 FROM there WHERE is_complete
