"""What an artefact says about itself: wheels, ELF files, GPU code."""
