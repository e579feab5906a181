-- A database as the first release left it: its schema, and rows of each table.
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
CREATE TABLE audit ( seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, at VARCHAR(32) NOT NULL, project_id VARCHAR(32), key_id VARCHAR(32), action VARCHAR(64) NOT NULL, objects JSON NOT NULL, status INTEGER NOT NULL, code VARCHAR(64), request_id VARCHAR(128) NOT NULL );
CREATE TABLE idempotency_keys ( project_id VARCHAR(32) NOT NULL, "key" VARCHAR(255) NOT NULL, body_sha256 VARCHAR(64) NOT NULL, sandbox_id VARCHAR(32) NOT NULL, status INTEGER, response TEXT, created_at VARCHAR(32) NOT NULL, CONSTRAINT pk_idempotency_keys PRIMARY KEY (project_id, "key") );
CREATE TABLE node_cursors ( node_id VARCHAR(64) NOT NULL, seq BIGINT NOT NULL, CONSTRAINT pk_node_cursors PRIMARY KEY (node_id) );
CREATE TABLE outbox ( seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, at VARCHAR(32) NOT NULL, kind VARCHAR(64) NOT NULL, project_id VARCHAR(32) NOT NULL, sandbox_id VARCHAR(32), data JSON NOT NULL );
CREATE TABLE projects ( id VARCHAR(32) NOT NULL, name VARCHAR(64) NOT NULL, created_at VARCHAR(32) NOT NULL, CONSTRAINT pk_projects PRIMARY KEY (id), CONSTRAINT uq_projects_name UNIQUE (name) );
CREATE TABLE api_keys ( id VARCHAR(32) NOT NULL, project_id VARCHAR(32) NOT NULL, label VARCHAR(256), secret_sha256 VARCHAR(64) NOT NULL, created_at VARCHAR(32) NOT NULL, last_used_at VARCHAR(32), revoked_at VARCHAR(32), CONSTRAINT pk_api_keys PRIMARY KEY (id), CONSTRAINT fk_api_keys_project_id FOREIGN KEY(project_id) REFERENCES projects (id), CONSTRAINT uq_api_keys_secret_sha256 UNIQUE (secret_sha256) );
CREATE TABLE sandboxes ( id VARCHAR(32) NOT NULL, project_id VARCHAR(32) NOT NULL, state VARCHAR(16) NOT NULL, termination_reason VARCHAR(16), message TEXT, template VARCHAR(64) NOT NULL, template_digest VARCHAR(64) NOT NULL, template_env JSON NOT NULL, name VARCHAR(64), owner VARCHAR(256), labels JSON NOT NULL, env JSON NOT NULL, user VARCHAR(256) NOT NULL, workdir TEXT NOT NULL, cpus FLOAT NOT NULL, memory_bytes BIGINT NOT NULL, disk_bytes BIGINT NOT NULL, inodes BIGINT NOT NULL, pids INTEGER NOT NULL, lifetime_s FLOAT NOT NULL, idle_timeout_s FLOAT, expires_at VARCHAR(32), tier VARCHAR(32) NOT NULL, runtime VARCHAR(64), runtime_version VARCHAR(128), network VARCHAR(32) NOT NULL, node_id VARCHAR(64), generation INTEGER NOT NULL, created_at VARCHAR(32) NOT NULL, started_at VARCHAR(32), ended_at VARCHAR(32), deleted_at VARCHAR(32), CONSTRAINT pk_sandboxes PRIMARY KEY (id), CONSTRAINT fk_sandboxes_project_id FOREIGN KEY(project_id) REFERENCES projects (id) );
CREATE TABLE sandbox_labels ( sandbox_id VARCHAR(32) NOT NULL, "key" VARCHAR(64) NOT NULL, value VARCHAR(256) NOT NULL, CONSTRAINT pk_sandbox_labels PRIMARY KEY (sandbox_id, "key"), CONSTRAINT fk_sandbox_labels_sandbox_id FOREIGN KEY(sandbox_id) REFERENCES sandboxes (id) ON DELETE CASCADE );
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_project_id_seq ON audit (project_id, seq);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
CREATE INDEX ix_outbox_at ON outbox (at);
CREATE INDEX ix_api_keys_project_id ON api_keys (project_id);
CREATE INDEX ix_sandboxes_list ON sandboxes (project_id, created_at, id);
CREATE INDEX ix_sandboxes_state ON sandboxes (state, ended_at);
CREATE UNIQUE INDEX uq_sandboxes_live_name ON sandboxes (project_id, name) WHERE name IS NOT NULL AND state IN ('creating', 'running');
CREATE INDEX ix_sandbox_labels_key_value ON sandbox_labels ("key", value);
INSERT INTO alembic_version VALUES ('0001');
INSERT INTO projects VALUES ('pjaaaaaaaaaaaaaaaa', 'first', '2026-11-29T10:00:00.000000Z');
-- The secret is bg_ and 32 times "a".
INSERT INTO api_keys VALUES ('kyaaaaaaaaaaaaaaaa', 'pjaaaaaaaaaaaaaaaa', 'ci', '@DIGEST@', '2026-11-29T10:00:00.000000Z', NULL, NULL);
INSERT INTO sandboxes (id, project_id, state, termination_reason, message, template, template_digest, template_env, name,
  owner, labels, env, user, workdir, cpus, memory_bytes, disk_bytes, inodes, pids, lifetime_s, idle_timeout_s, expires_at,
  tier, runtime, runtime_version, network, node_id, generation, created_at, started_at, ended_at, deleted_at) VALUES
  ('sbaaaaaaaaaaaaaaaaaaaa', 'pjaaaaaaaaaaaaaaaa', 'running', NULL, NULL, 'base', 'abab', '{"LANG": "C.UTF-8"}', 'report-7',
   'ada', '{"team": "data"}', '{"A": "1"}', 'user', '/home/user', 2.0, 4294967296, 10737418240, 655360, 512, 600.0, NULL,
   '2030-01-01T00:00:00.000000Z', 'container', 'runc', '1.1.5', 'deny', 'local', 1, '2026-11-29T10:00:01.000000Z',
   '2026-11-29T10:00:02.000000Z', NULL, NULL),
  ('sbbbbbbbbbbbbbbbbbbbbb', 'pjaaaaaaaaaaaaaaaa', 'ended', 'idle', 'nobody came', 'base', 'abab', '{}', NULL,
   NULL, '{}', '{}', 'user', '/home/user', 1.0, 536870912, 1073741824, 65536, 128, 600.0, 60.0, NULL,
   'container', 'runc', '1.1.5', 'deny', 'local', 1, '2026-11-29T10:00:03.000000Z',
   '2026-11-29T10:00:04.000000Z', '@NOW@', NULL);
INSERT INTO sandbox_labels VALUES ('sbaaaaaaaaaaaaaaaaaaaa', 'team', 'data');
INSERT INTO idempotency_keys VALUES ('pjaaaaaaaaaaaaaaaa', 'key-1', '@BODY@', 'sbaaaaaaaaaaaaaaaaaaaa', 201,
  '{"id": "sbaaaaaaaaaaaaaaaaaaaa", "stored": true}', '@NOW@');
INSERT INTO outbox (at, kind, project_id, sandbox_id, data) VALUES
  ('@NOW@', 'sandbox.creating', 'pjaaaaaaaaaaaaaaaa', 'sbaaaaaaaaaaaaaaaaaaaa', '{"template": "base"}');
INSERT INTO node_cursors VALUES ('local', 2);
INSERT INTO audit (at, project_id, key_id, action, objects, status, code, request_id) VALUES
  ('2026-11-29T10:00:01.000000Z', 'pjaaaaaaaaaaaaaaaa', 'kyaaaaaaaaaaaaaaaa', 'sandbox.create', '{}', 201, NULL, 'rq1');
