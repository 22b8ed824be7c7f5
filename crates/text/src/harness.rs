//! Headers by which known coding agents and front ends name their session.
//!
//! Values are one per conversation. Ids of requests, messages, users, devices and installations are
//! no keys: the first two change with every request, the others are shared by all conversations.

/// Lower-case names, in the order in which they are looked at: a product's own header before
/// generic ones. Beside each: who sends it.
pub const HARNESS_HEADERS: [&str; 25] = [
    "x-claude-code-session-id",        // Claude Code
    "x-qwen-code-session-id",          // Qwen Code
    "x-codex-session-id",              // Codex forks
    "x-opencode-session",              // opencode
    "x-deepseek-harness-session-id",   // DeepSeek harnesses
    "x-hermes-session-id",             // Hermes agent
    "x-openwebui-chat-id",             // Open WebUI (forwarding of user information on)
    "x-librechat-conversation-id",     // LibreChat (custom headers)
    "x-librechat-body-conversationid", // LibreChat (its documentation's example)
    "x-anythingllm-thread-id",         // AnythingLLM
    "helicone-session-id",             // clients set up for Helicone
    "x-litellm-session-id",            // clients set up for LiteLLM
    "langfuse_session_id",             // clients set up for Langfuse through LiteLLM
    "x-portkey-session-id",            // clients set up for Portkey
    "x-gproxy-session-id",             // clients set up for gproxy
    "session_id",                      // Codex
    "session-id",                      // Codex, later versions
    "x-session-affinity",              // opencode, Fireworks' clients
    "x-session-id",                    // convention
    "conversation_id",                 // Codex
    "conversation-id",                 // convention
    "x-conversation-id",               // convention
    "thread-id",                       // Codex
    "x-thread-id",                     // convention
    "x-chat-id",                       // convention
];
