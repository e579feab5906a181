"""What programs get as Host at ports that are published at their first visit."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("auto_publish_host", sa.String(length=256), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
