//! Every way the filter can do less than route by a model, by name.
//!
//! A fallback that nobody sees is how a router quietly becomes round-robin. So each has one value here,
//! one counter (`foretoken_fallback_total` with label `reason`), one row in `docs/fallbacks.md`. The same for
//! requests that the filter answers itself ([`Refusal`], `foretoken_refused_total`).

/// Which rung of the ladder chose the order of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// A trained model's predictions.
    Model,
    /// The analytic prior.
    Prior,
    /// Fewest tokens in flight: predictions were not finite.
    LeastTokens,
    /// Envoy's own load-balancing policy: the filter set no pick.
    Envoy,
}

impl Rung {
    /// The name used in metrics, samples and the explain header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Prior => "prior",
            Self::LeastTokens => "least_tokens",
            Self::Envoy => "envoy",
        }
    }
}

macro_rules! reasons {
    ($(#[$about:meta])* $reason:ident: $($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $reason { $($(#[$doc])* $variant,)+ }

        impl $reason {
            /// All reasons, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label value in metrics and the explain header.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

reasons! {
    /// Why a request was not routed by a model, or not among the pods that it should be.
    Reason:
    /// No model has been configured yet: the prior routes.
    NoModel = "no_model",
    /// The model returned a value that is not finite or not positive: the prior routes.
    ModelOutput = "model_output",
    /// The prior was not finite either: the fewest tokens in flight route.
    PriorOutput = "prior_output",
    /// The path is not one that the filter reads.
    UnknownPath = "unknown_path",
    /// The method is not POST.
    Method = "method",
    /// The request has no body.
    NoBody = "no_body",
    /// The body is longer than `request.max_body_bytes`.
    BodyTooLarge = "body_too_large",
    /// The body is not JSON.
    BodyNotJson = "body_not_json",
    /// The body is JSON but not a request of this API.
    BodyNotRequest = "body_not_request",
    /// The body arrived with a content-encoding that the filter does not read.
    BodyEncoded = "body_encoded",
    /// No candidate pod is known.
    NoCandidates = "no_candidates",
    /// No candidate is healthy: all pods stay candidates.
    NoneHealthy = "none_healthy",
    /// No pod lists the model that was asked for: all pods stay candidates.
    ModelNotServed = "model_not_served",
    /// A call into the host failed.
    HostCall = "host_call",
    /// The route says that Envoy's own policy picks (`routes.*.enabled`).
    RouteOff = "route_off",
}

reasons! {
    /// Why a request was answered here and sent to no pod.
    Refusal:
    /// It may be shed, and no pod would give it a first token in time.
    ShedTtft = "shed_ttft",
    /// It may be shed, and every pod that would give it a first token in time would be too slow after it.
    ShedTpot = "shed_tpot",
    /// Its TTFT target cannot be read.
    MalformedTtftTarget = "malformed_ttft_target",
    /// Its TPOT target cannot be read.
    MalformedTpotTarget = "malformed_tpot_target",
    /// Its priority cannot be read.
    MalformedPriority = "malformed_priority",
}

impl Refusal {
    /// The HTTP status of the answer.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::ShedTtft | Self::ShedTpot => 429,
            Self::MalformedTtftTarget | Self::MalformedTpotTarget | Self::MalformedPriority => 400,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_metric_label() {
        let mut seen = std::collections::HashSet::new();
        let refusals = Refusal::ALL.iter().map(|refusal| refusal.name());
        for name in Reason::ALL.iter().map(|reason| reason.name()).chain(refusals) {
            assert!(seen.insert(name));
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        }
    }
}
