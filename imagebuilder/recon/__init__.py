"""What else is there: releases that exist, and which of them go together."""
