// Texts from a seed: the same on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace lockstep {

// Any bytes.
std::string random_bytes(std::mt19937_64& random, size_t size_bytes);

// Valid UTF-8 from many scripts, with the spaces, digits and marks that pre-tokenizers look at.
std::string random_characters(std::mt19937_64& random, size_t character_count);

// Both, mixed.
std::string random_mixture(std::mt19937_64& random, size_t part_count);

}  // namespace lockstep
