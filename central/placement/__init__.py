"""Where to put jobs so that they slow each other down least."""
