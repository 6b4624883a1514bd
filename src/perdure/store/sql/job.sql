-- name: insert_job
INSERT INTO job (id, tenant, "user", name, version, state, queue, priority, input, plan,
                 key, fingerprint, parent, parent_seq, root, forked_from, budget_of, created_at,
                 deadline_at, labels)
VALUES (:id, :tenant, :user, :name, :version, 'PENDING', :queue, :priority, :input, :plan,
        :key, :fingerprint, :parent, :parent_seq,
        (SELECT coalesce(root, id) FROM job WHERE id = :parent),
        :forked_from, :budget_of, :created_at, :deadline_at, :labels)
ON CONFLICT DO NOTHING

-- name: insert_label
INSERT INTO label (job_id, name, value, created_at) VALUES (:id, :name, :value, :now)

-- name: delete_labels
DELETE FROM label
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: same_job
SELECT id, fingerprint FROM job
WHERE (tenant = :tenant AND key = :key) OR id = :id
ORDER BY id = :id DESC

-- name: job_state
SELECT state, request, paused_from, queue, tenant, priority, epoch, error, worked, coalesce(root, id)
FROM job WHERE id = :id
FOR UPDATE  -- postgres

-- name: what_runs
SELECT name, version, plan FROM job WHERE id = :id

-- name: above
SELECT parent, (SELECT state FROM job AS above WHERE above.id = job.parent) FROM job WHERE id = :id

-- name: has_ended
SELECT state, ended_at IS NOT NULL FROM job WHERE id = :id

-- name: keep_job
-- What is copied from it stays complete: nobody deletes it before this transaction has ended.
SELECT 1 FROM job WHERE id = :id
FOR SHARE  -- postgres

-- name: claim_jobs
UPDATE job SET
  state = CASE state WHEN 'COMPENSATING' THEN state ELSE 'RUNNING' END,
  started_at = coalesce(started_at, :now),
  wait = NULL
WHERE id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE id = ANY(:ids)  -- postgres

-- name: change_job
UPDATE job SET
  state = :state, result = :result, error = :error, wait = :wait,
  -- What is being undone cannot be cancelled any more.
  request = CASE WHEN :clear_request = 1 OR (:state = 'COMPENSATING' AND request = 'cancel') THEN NULL
                 ELSE request END,
  paused_from = CASE WHEN :state <> 'PAUSED' THEN NULL WHEN state = 'PAUSED' THEN paused_from ELSE state END
WHERE id = :id

-- name: change_version
UPDATE job SET version = :version WHERE id = :id

-- name: count_reused
UPDATE job SET reused = reused + :number WHERE id = :id

-- name: count_failed_undos
UPDATE job SET failed_undos = (
  SELECT count(*) FROM journal WHERE job_id = :id AND kind = 'undo' AND state = 'FAILED')
WHERE id = :id

-- name: begin_anew
UPDATE job SET input = :input WHERE id = :id

-- name: end_job
UPDATE job SET
  state = :state, result = :result, error = :error, wait = NULL, request = NULL,
  paused_from = NULL, ended_at = :now, epoch = :epoch,
  worked = coalesce((
    SELECT lease.worked + CASE WHEN owner IS NULL THEN 0
      ELSE max(0, :clock - since) END  -- sqlite
      ELSE greatest(0, :clock - since) END  -- postgres
    FROM lease WHERE job_id = :id), worked)
WHERE id = :id

-- name: command_job
UPDATE job SET
  state = :state, request = :request,
  error = CASE WHEN :forget = 1 AND :state <> 'COMPENSATING' THEN NULL ELSE error END,
  ended_at = CASE WHEN :forget = 1 THEN NULL ELSE ended_at END,
  -- Whoever continues a job after its deadline wants it to go on: it would only fail again.
  deadline_at = CASE WHEN :forget = 1 AND deadline_at <= :now THEN NULL ELSE deadline_at END,
  paused_from = CASE WHEN :state <> 'PAUSED' THEN NULL WHEN state = 'PAUSED' THEN paused_from ELSE state END
WHERE id = :id

-- part: job_columns
SELECT job.id, job.tenant, job."user", job.name, job.version, job.state, job.queue, job.priority,
       job.input, job.plan, job.result, job.error, job.wait, job.request, job.key,
       job.parent, job.parent_seq, job.forked_from, job.created_at, job.started_at, job.ended_at,
       job.deadline_at, lease.due_at, lease.owner, coalesce(lease.epoch, job.epoch),
       coalesce(lease.claims, 0), job.budget_of, coalesce(lease.awaits, 0), job.labels,
       coalesce(lease.worked, job.worked) + CASE WHEN lease.owner IS NULL THEN 0
         ELSE max(0, min(:clock, lease.until) - lease.since) END,  -- sqlite
         ELSE greatest(0, least(:clock, lease.until) - lease.since) END,  -- postgres
       lease.progress,
       CASE WHEN lease.owner IS NULL THEN NULL
         ELSE max(0, :clock - lease.since) END,  -- sqlite
         ELSE greatest(0, :clock - lease.since) END,  -- postgres
       CASE WHEN
         -- use: is_stuck
         THEN 1 ELSE 0 END,
       job.failed_undos

-- name: get_job
-- use: job_columns
FROM job LEFT JOIN lease ON lease.job_id = job.id  -- sqlite
FROM job LEFT JOIN LATERAL (SELECT * FROM lease WHERE job_id = job.id LIMIT 1) AS lease ON true  -- postgres
WHERE job.id = :id

-- name: get_jobs
-- use: job_columns
FROM job LEFT JOIN lease ON lease.job_id = job.id  -- sqlite
FROM job LEFT JOIN LATERAL (SELECT * FROM lease WHERE job_id = job.id LIMIT 1) AS lease ON true  -- postgres
WHERE job.id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job.id = ANY(:ids)  -- postgres

-- name: outcomes
SELECT id, state, result, error, wait, ended_at FROM job
WHERE id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE id = ANY(:ids)  -- postgres

-- name: may_run_again
-- Of some jobs, those whose code or compensations may still run. To have ended is not enough: a
-- person may retry or undo what is FAILED or CANCELLED, and whoever undoes a job undoes its
-- completed children. A tree in which all are COMPLETED or COMPENSATED stays as it is.
WITH asked AS (
  SELECT id, coalesce(root, id) AS root FROM job
  WHERE id IN (SELECT value FROM json_each(:ids))  -- sqlite
  WHERE id = ANY(:ids)  -- postgres
), changeable AS (
  SELECT id AS root FROM job
  WHERE id IN (SELECT root FROM asked)  -- sqlite
  WHERE id = ANY(ARRAY(SELECT root FROM asked))  -- postgres
    AND state NOT IN ('COMPLETED', 'COMPENSATED')
  UNION
  SELECT root FROM job
  WHERE root IN (SELECT root FROM asked)  -- sqlite
  WHERE root = ANY(ARRAY(SELECT root FROM asked))  -- postgres
    AND state NOT IN ('COMPLETED', 'COMPENSATED')
)
SELECT id FROM asked WHERE root IN (SELECT root FROM changeable)

-- name: parents
SELECT parent FROM job
WHERE parent IS NOT NULL AND id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE parent IS NOT NULL AND id = ANY(:ids)  -- postgres

-- name: counts
SELECT state, count(*) FROM job GROUP BY state

-- name: counts_of
SELECT state, count(*) FROM job
WHERE job.created_at <= :until
  -- use: job_matches
GROUP BY state

-- name: has_old
SELECT EXISTS (SELECT 1 FROM job WHERE ended_at < :before)
    OR EXISTS (SELECT 1 FROM effect
               WHERE kept_until < :now AND (SELECT 1 FROM job WHERE job.id = effect.job_id) IS NULL)

-- name: ids_like
SELECT id FROM job
WHERE substr(id, 1, length(:part)) = :part OR substr(id, -length(:part)) = :part  -- sqlite
WHERE left(id, length(:part)) = :part OR right(id, length(:part)) = :part  -- postgres
ORDER BY id DESC
LIMIT :limit

-- name: prunable
-- The roots of trees that may be deleted: as long as one job of a tree may still be undone, the undo
-- needs all of it.
SELECT id FROM job
WHERE ended_at < :before AND root IS NULL
  AND (SELECT count(*) FILTER (
         WHERE part.ended_at IS NULL OR part.ended_at >= :before
            OR (SELECT count(*) FILTER (WHERE state IN ('INTENT', 'IN_DOUBT'))
                FROM effect WHERE effect.job_id = part.id) > 0)
       FROM job AS part WHERE part.root = job.id) = 0
  -- An effect in doubt is kept: other jobs may wait for its outcome. This is a FILTER, since for a
  -- plain condition the planner would choose the index of open effects.
  AND (SELECT count(*) FILTER (WHERE state IN ('INTENT', 'IN_DOUBT'))
       FROM effect WHERE effect.job_id = job.id) = 0
ORDER BY ended_at
LIMIT :limit
FOR UPDATE SKIP LOCKED  -- postgres

-- name: parts
SELECT id, root, ended_at IS NULL FROM job
WHERE root IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE root = ANY(:ids)  -- postgres
FOR UPDATE  -- postgres

-- name: delete_jobs
DELETE FROM job
WHERE id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE id = ANY(:ids)  -- postgres

-- part: job_matches
-- The conditions of a `JobQuery`, for the statements that find and count jobs.
  AND (job.created_at, job.id) < (:until, :last)  -- if last
  AND job.tenant = :tenant  -- if tenant
  AND job.state = :state  -- if state
  AND job.state IN (SELECT value FROM json_each(:states))  -- sqlite if states
  AND job.state = ANY(:states)  -- postgres if states
  AND job.name = :name  -- if name
  AND substr(job.name, 1, length(:name_prefix)) = :name_prefix  -- sqlite if name_prefix
  AND starts_with(job.name, :name_prefix)  -- postgres if name_prefix
  AND job.queue = :queue  -- if queue
  AND job."user" = :user  -- if user
  AND job.parent = :parent  -- if parent
  AND job.parent IS NULL  -- if roots
  AND job.id IN (SELECT value FROM json_each(:ids))  -- sqlite if ids
  AND job.id = ANY(:ids)  -- postgres if ids
  AND job.parent IN (SELECT value FROM json_each(:parents))  -- sqlite if parents
  AND job.parent = ANY(:parents)  -- postgres if parents
  AND job.key = :key  -- if key
  AND substr(job.key, 1, length(:key_prefix)) = :key_prefix  -- sqlite if key_prefix
  AND starts_with(job.key, :key_prefix)  -- postgres if key_prefix
  AND job.created_at >= :created_from  -- if created_from
  AND job.created_at < :created_until  -- if created_until
  AND job.ended_at >= :ended_from  -- if ended_from
  AND job.ended_at < :ended_until  -- if ended_until
  AND job.wait IS NOT NULL AND EXISTS (  -- sqlite if waits
        SELECT 1 FROM json_each(CASE WHEN json_valid(job.wait) THEN job.wait ELSE '[]' END) AS each  -- sqlite if waits
        WHERE json_extract(each.value, '$.kind') = :waits)  -- sqlite if waits
  AND as_jsonb(job.wait) @> jsonb_build_array(jsonb_build_object('kind', :waits::text))  -- postgres if waits
  AND job.name NOT IN (SELECT value FROM json_each(:not_names))  -- sqlite if not_names
  AND job.name <> ALL(:not_names)  -- postgres if not_names
  AND job.queue NOT IN (SELECT value FROM json_each(:not_queues))  -- sqlite if not_queues
  AND job.queue <> ALL(:not_queues)  -- postgres if not_queues
  AND job."user" NOT IN (SELECT value FROM json_each(:not_users))  -- sqlite if not_users
  AND job."user" <> ALL(:not_users)  -- postgres if not_users
  AND NOT EXISTS (SELECT 1 FROM json_each(:words) AS word  -- sqlite if words
  AND NOT EXISTS (SELECT 1 FROM unnest(:words::text[]) AS word (value)  -- postgres if words
        WHERE instr(  -- sqlite if words
        WHERE strpos(  -- postgres if words
          lower(job.id || ' ' || job.name || ' ' || coalesce(job.key, '') || ' ' || job."user"),  -- if words
          lower(word.value)) = 0)  -- if words
  AND (SELECT count(*) FROM json_each(:labels) AS wanted CROSS JOIN label  -- sqlite if labels
  AND (SELECT count(*) FROM json_each_text(:labels::json) AS wanted, label  -- postgres if labels
       WHERE label.job_id = job.id AND label.name = wanted.key  -- if labels
         AND label.value = wanted.value) = :labels_wanted  -- if labels
  AND NOT EXISTS (SELECT 1 FROM json_each(:not_labels) AS unwanted CROSS JOIN label  -- sqlite if not_labels
  AND NOT EXISTS (SELECT 1 FROM json_each_text(:not_labels::json) AS unwanted, label  -- postgres if not_labels
       WHERE label.job_id = job.id AND label.name = unwanted.key  -- if not_labels
         AND label.value = unwanted.value)  -- if not_labels

-- name: find_jobs
-- use: job_columns
FROM job LEFT JOIN lease ON lease.job_id = job.id  -- sqlite
FROM job LEFT JOIN LATERAL (SELECT * FROM lease WHERE job_id = job.id LIMIT 1) AS lease ON true  -- postgres
WHERE job.created_at <= :until
  -- use: job_matches
ORDER BY job.created_at DESC, job.id DESC
LIMIT :limit

-- name: query_words
SELECT DISTINCT name, queue, "user", tenant, labels FROM (
  SELECT name, queue, "user", tenant, labels FROM job
  WHERE created_at <= :until
    AND tenant = :tenant  -- if tenant
  ORDER BY created_at DESC
  LIMIT :limit) AS newest

-- name: find_labelled_jobs
-- The newest jobs of one label are found by its index; the other labels are looked up in each.
-- use: job_columns
FROM label AS mark CROSS JOIN job LEFT JOIN lease ON lease.job_id = job.id  -- sqlite
FROM label AS mark CROSS JOIN LATERAL (SELECT * FROM job WHERE id = mark.job_id LIMIT 1) AS job  -- postgres
LEFT JOIN LATERAL (SELECT * FROM lease WHERE job_id = job.id LIMIT 1) AS lease ON true  -- postgres
WHERE mark.name = :label AND mark.value = :label_value AND mark.created_at <= :until
  AND job.id = mark.job_id  -- sqlite
  -- use: job_matches
ORDER BY mark.created_at DESC, mark.job_id DESC
LIMIT :limit
