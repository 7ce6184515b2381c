"""Problems of widely used models, and the public architecture parameters they come from."""
