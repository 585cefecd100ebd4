"""What a run says about itself beside its scalars: records, profiles, floating-point work."""
