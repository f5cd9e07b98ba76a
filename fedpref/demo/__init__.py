"""The bundled demo: synthetic reports, six synthetic sites, rule lexicons, a tiny base model."""
