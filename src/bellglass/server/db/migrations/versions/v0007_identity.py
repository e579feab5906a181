"""Whether a sandbox may call the API as itself."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("identity", sa.Boolean(), nullable=False, server_default=sa.true()))


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
