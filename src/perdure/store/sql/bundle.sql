-- name: import_job
INSERT INTO job (id, tenant, "user", name, version, state, queue, priority, input, result, error,
                 wait, fingerprint, created_at, started_at, ended_at, labels, worked, epoch)
VALUES (:id, :tenant, :user, :name, :version, :state, :queue, :priority, :input, :result, :error,
        :wait, '', :created_at, :started_at, :ended_at, :labels, :worked, 1)
ON CONFLICT DO NOTHING

-- name: import_entry
INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, input, output, error, checkpoint,
                     checkpoint_no, wake_at, started_at, ended_at)
VALUES (:job_id, :seq, :id, :kind, :name, :state, :attempt, :input, :output, :error, :checkpoint,
        :checkpoint_no, :wake_at, :started_at, :ended_at)

-- name: import_effect
INSERT INTO effect (job_id, no, tenant, key, step, part, ordinal, generation, kind, target, state,
                    in_doubt, key_ttl, details, result, problem, error, proof, called_at, ended_at)
VALUES (:id, :no, :tenant, :key, :step, :part, :ordinal, :generation, :kind, :target, :state,
        :in_doubt, 0, :details, :result, :problem, :error, :proof, :called_at, :ended_at)
