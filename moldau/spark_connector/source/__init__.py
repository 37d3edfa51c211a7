"""Reading: offsets planned on the driver, records fetched by the workers."""
