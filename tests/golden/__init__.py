"""The comparison of two revisions by what their commands write: `make golden BASE=REVISION`."""
